// A clock that runs as the system's does, ahead of it by what a test adds: waits of minutes end at once, and processes
// that know only the system's clock still keep their time. Thread-safe.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace kcoral::executor {

class ShiftedClock : public Clock {
 public:
  SteadyTime now() const override { return Clock::system().now() + ahead(); }
  WallTime wall_now() const override { return Clock::system().wall_now() + ahead(); }

  void advance(std::chrono::milliseconds by) { ahead_ms_ += by.count(); }

 private:
  std::chrono::milliseconds ahead() const { return std::chrono::milliseconds(ahead_ms_.load()); }

  std::atomic<int64_t> ahead_ms_{0};
};

}  // namespace kcoral::executor
