// Time as a dependency: whoever waits or stamps takes a Clock, so that a test can move it.
// Clocks are thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace kcoral {

using SteadyTime = std::chrono::steady_clock::time_point;
using WallTime = std::chrono::time_point<std::chrono::system_clock, std::chrono::microseconds>;

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic: for durations and deadlines. Not affected by steps of the wall clock.
  virtual SteadyTime now() const = 0;
  /// For time stamps that people read.
  virtual WallTime wall_now() const = 0;

  static Clock& system();
};

/// Stands still until told to move.
class FakeClock : public Clock {
 public:
  SteadyTime now() const override { return SteadyTime(std::chrono::microseconds(steady_us_.load())); }
  WallTime wall_now() const override { return WallTime(std::chrono::microseconds(wall_us_.load())); }

  void advance(std::chrono::microseconds by) {
    steady_us_ += by.count();
    wall_us_ += by.count();
  }
  /// A step of the wall clock alone, as an operator or NTP makes it.
  void step_wall(std::chrono::microseconds by) { wall_us_ += by.count(); }

 private:
  std::atomic<int64_t> steady_us_{1'000'000'000};
  std::atomic<int64_t> wall_us_{1'700'000'000'000'000};
};

/// Milliseconds as the wire carries them.
inline double to_ms(std::chrono::nanoseconds duration) { return static_cast<double>(duration.count()) / 1e6; }

/// RFC 3339 in UTC with microseconds: "2026-11-29T19:24:56.012345Z".
std::string rfc3339(WallTime time);

/// Reads RFC 3339: a date and a time of day, "T" between them, and "Z" or an offset from UTC. Of fractions of a second
/// the first six digits count. nullopt for anything else, days that do not exist and leap seconds among it.
std::optional<WallTime> parse_rfc3339(std::string_view text);

}  // namespace kcoral
