// A few threads that do blocking work in the order in which it was posted. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kcoral::store {

class ThreadPool {
 public:
  /// `name` is what the kernel shows for its threads: at most 15 characters.
  ThreadPool(size_t thread_count, const char* name);
  ~ThreadPool();

  /// Requires: not closed.
  void post(std::function<void()> work);

  /// Does all that was posted, then ends the threads.
  void close();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wakeup_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_
  bool closing_ = false;                       // guarded by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace kcoral::store
