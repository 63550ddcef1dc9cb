#include "base/clock.h"

#include <gtest/gtest.h>

namespace kcoral {
namespace {

using namespace std::chrono_literals;

TEST(Clock, WritesRfc3339WithMicroseconds) {
  EXPECT_EQ(rfc3339(WallTime(1'700'000'000'000'042us)), "2023-11-14T22:13:20.000042Z");
  EXPECT_EQ(rfc3339(WallTime(0us)), "1970-01-01T00:00:00.000000Z");
}

TEST(FakeClock, MovesOnlyWhenTold) {
  FakeClock clock;
  const SteadyTime start = clock.now();
  const WallTime wall = clock.wall_now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(1500ms);
  EXPECT_EQ(clock.now() - start, 1500ms);
  EXPECT_EQ(clock.wall_now() - wall, 1500ms);
}

TEST(FakeClock, AStepOfTheWallClockLeavesDurationsAlone) {
  FakeClock clock;
  const SteadyTime start = clock.now();
  const WallTime wall = clock.wall_now();
  clock.step_wall(-3600s);
  EXPECT_EQ(clock.now(), start);
  EXPECT_EQ(clock.wall_now() - wall, -3600s);
}

}  // namespace
}  // namespace kcoral
