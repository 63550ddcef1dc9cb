// One thread's loop over descriptors, timers and posted functions.
// `post` and `stop` may be called from any thread; everything else only from the loop's own thread or before `run`.
// Callbacks may add and remove descriptors and timers, their own included.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/timer_queue.h"
#include "base/unique_fd.h"

namespace kcoral {

class EventLoop {
 public:
  using Callback = std::function<void()>;
  /// Called with the epoll events that are ready (EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR).
  using FdCallback = std::function<void(uint32_t events)>;
  using TimerId = TimerQueue::Id;

  static Result<std::unique_ptr<EventLoop>> create(Clock& clock = Clock::system());

  /// Level-triggered. Requires: `fd` is open and not yet watched. The loop does not own it: `unwatch` before closing.
  Status watch(int fd, uint32_t events, FdCallback callback);
  void unwatch(int fd);

  TimerId run_at(SteadyTime when, Callback callback) { return timers_.add(when, std::move(callback)); }
  TimerId run_after(std::chrono::nanoseconds delay, Callback callback) {
    return run_at(clock_.now() + std::chrono::duration_cast<SteadyTime::duration>(delay), std::move(callback));
  }
  /// A timer that has run or was cancelled already is ignored.
  void cancel(TimerId timer) { timers_.cancel(timer); }

  /// Runs `callback` on the loop's thread, in the order of posting.
  void post(Callback callback);

  /// Returns after `stop`.
  void run();
  void stop();

  Clock& clock() const { return clock_; }

 private:
  explicit EventLoop(Clock& clock) : clock_(clock) {}
  int next_timeout_ms() const;
  void run_posted() KCORAL_EXCLUDES(mutex_);

  Clock& clock_;
  UniqueFd epoll_;
  UniqueFd wakeup_;
  // Events name a watch, not a descriptor: a descriptor's number may belong to somebody else within the same round.
  std::unordered_map<uint64_t, std::shared_ptr<FdCallback>> watches_;
  std::unordered_map<int, uint64_t> watch_of_fd_;
  uint64_t next_watch_ = 1;
  TimerQueue timers_;

  Mutex mutex_;
  std::vector<Callback> posted_ KCORAL_GUARDED_BY(mutex_);
  bool stopping_ KCORAL_GUARDED_BY(mutex_) = false;
};

}  // namespace kcoral
