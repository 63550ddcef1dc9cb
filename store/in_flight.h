// Counts what was accepted and is not yet done, so that closing can wait for it. Thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "base/mutex.h"

namespace kcoral::store {

class InFlight {
 public:
  /// Held by everything that an accepted call still has to do: the call is over when the last copy is gone.
  using Token = std::shared_ptr<void>;

  /// Null once `close_and_wait` was called.
  Token enter() {
    const MutexLock lock(mutex_);
    if (closed_) return nullptr;
    ++count_;
    return Token(this, [](InFlight* self) { self->leave(); });
  }

  void close_and_wait() {
    const MutexLock lock(mutex_);
    closed_ = true;
    while (count_ > 0) none_left_.wait(mutex_);
  }

 private:
  void leave() KCORAL_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (--count_ == 0) none_left_.notify_all();
  }

  Mutex mutex_;
  ConditionVariable none_left_;
  size_t count_ KCORAL_GUARDED_BY(mutex_) = 0;
  bool closed_ KCORAL_GUARDED_BY(mutex_) = false;
};

}  // namespace kcoral::store
