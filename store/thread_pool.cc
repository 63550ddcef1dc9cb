#include "store/thread_pool.h"

#include <pthread.h>

#include "base/error.h"

namespace kcoral::store {

ThreadPool::ThreadPool(size_t thread_count, const char* name) {
  for (size_t i = 0; i < thread_count; ++i) {
    threads_.emplace_back([this] { run(); });
    ::pthread_setname_np(threads_.back().native_handle(), name);
  }
}

ThreadPool::~ThreadPool() { close(); }

void ThreadPool::post(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    KCORAL_CHECK(!closing_);
    waiting_.push_back(std::move(work));
  }
  wakeup_.notify_one();
}

void ThreadPool::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  wakeup_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void ThreadPool::run() {
  for (;;) {
    std::function<void()> work;
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !closing_) wakeup_.wait(mutex_);
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace kcoral::store
