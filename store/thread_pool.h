// A few threads that do blocking work in the order in which it was posted. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

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

  Mutex mutex_;
  ConditionVariable wakeup_;
  std::deque<std::function<void()>> waiting_ KCORAL_GUARDED_BY(mutex_);
  bool closing_ KCORAL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kcoral::store
