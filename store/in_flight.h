// Counts what was accepted and is not yet done, so that closing can wait for it. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

namespace kcoral::store {

class InFlight {
 public:
  /// Held by everything that an accepted call still has to do: the call is over when the last copy is gone.
  using Token = std::shared_ptr<void>;

  /// Null once `close_and_wait` was called.
  Token enter() {
    const std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
    ++count_;
    return Token(this, [](InFlight* self) { self->leave(); });
  }

  void close_and_wait() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    none_left_.wait(lock, [this] { return count_ == 0; });
  }

 private:
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_left_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable none_left_;
  size_t count_ = 0;     // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_
};

}  // namespace kcoral::store
