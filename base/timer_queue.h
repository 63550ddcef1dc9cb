// Callbacks by time, for one thread's loop. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/clock.h"

namespace kcoral {

class TimerQueue {
 public:
  using Id = uint64_t;

  Id add(SteadyTime when, std::function<void()> callback);
  /// A timer that has run or was cancelled already is ignored.
  void cancel(Id id);
  std::optional<SteadyTime> next() const;
  /// Runs everything due at `now`; callbacks may add and cancel.
  void run_due(SteadyTime now);

 private:
  std::map<std::pair<SteadyTime, Id>, std::function<void()>> timers_;
  std::unordered_map<Id, SteadyTime> times_;
  Id next_id_ = 1;
};

}  // namespace kcoral
