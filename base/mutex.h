// Locks that say what they guard: a field names its mutex, a function names the mutex that its caller must or must not
// hold, and scripts/check_thread_safety refuses code that does not keep to it.
//
// It promises: a Mutex is taken by MutexLocks alone, so it is given back on every way out and the analysis sees each
// use. For compilers other than clang the attributes are empty.
//
// Mutex and ConditionVariable are thread-safe; a MutexLock belongs to its scope.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/clock.h"

#if defined(__clang__)
#define KCORAL_THREAD_ATTRIBUTE(attribute) __attribute__((attribute))
#else
#define KCORAL_THREAD_ATTRIBUTE(attribute)
#endif

/// Of a field: read and written only while `mutex` is held.
#define KCORAL_GUARDED_BY(mutex) KCORAL_THREAD_ATTRIBUTE(guarded_by(mutex))
/// Of a function: its caller holds `mutex`.
#define KCORAL_REQUIRES(mutex) KCORAL_THREAD_ATTRIBUTE(requires_capability(mutex))
/// Of a function: its caller does not hold `mutex`, which it takes itself.
#define KCORAL_EXCLUDES(mutex) KCORAL_THREAD_ATTRIBUTE(locks_excluded(mutex))

namespace kcoral {

class KCORAL_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  friend class ConditionVariable;
  std::mutex mutex_;
};

/// Holds a mutex from here to the end of the scope.
class KCORAL_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  [[nodiscard]] explicit MutexLock(Mutex& mutex) KCORAL_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() KCORAL_THREAD_ATTRIBUTE(release_capability()) = default;

 private:
  const std::lock_guard<std::mutex> lock_;
};

/// A wait gives the mutex up meanwhile and holds it again when it returns, which may be without a reason. So it stands
/// in a loop: `while (!condition) changed.wait(mutex);`. There is no form with a predicate, for the analysis does not
/// know that one runs under the lock.
///
/// Inside, a std::condition_variable borrows the lock that the caller holds. A condition_variable_any would take a
/// Mutex as it is, but locks a second one of its own in each wait and each notification.
class ConditionVariable {
 public:
  void wait(Mutex& mutex) KCORAL_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  /// False if `deadline`, on the system's clock, has passed.
  [[nodiscard]] bool wait_until(Mutex& mutex, SteadyTime deadline) KCORAL_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace kcoral
