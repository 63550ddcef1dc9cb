#include "base/clock.h"

#include <gtest/gtest.h>

namespace kcoral {
namespace {

using namespace std::chrono_literals;

TEST(Clock, WritesRfc3339WithMicroseconds) {
  EXPECT_EQ(rfc3339(WallTime(1'700'000'000'000'042us)), "2023-11-14T22:13:20.000042Z");
  EXPECT_EQ(rfc3339(WallTime(0us)), "1970-01-01T00:00:00.000000Z");
}

TEST(Clock, ReadsRfc3339) {
  const WallTime time(1'700'000'000'000'042us);
  EXPECT_EQ(parse_rfc3339(rfc3339(time)), time);
  EXPECT_EQ(parse_rfc3339("2023-11-14T22:13:20Z"), WallTime(1'700'000'000s));
  EXPECT_EQ(parse_rfc3339("2023-11-14t22:13:20.5z"), WallTime(1'700'000'000'500ms));
  EXPECT_EQ(parse_rfc3339("2023-11-14T22:13:20.000042999Z"), time);
  EXPECT_EQ(parse_rfc3339("2023-11-15T03:43:20+05:30"), WallTime(1'700'000'000s));
  EXPECT_EQ(parse_rfc3339("2023-11-14T14:13:20-08:00"), WallTime(1'700'000'000s));
  EXPECT_EQ(parse_rfc3339("2024-02-29T00:00:00Z"), WallTime(1'709'164'800s));
}

TEST(Clock, RefusesWhatIsNotRfc3339) {
  for (const char* text :
       {"", "2023-11-14", "2023-11-14T22:13:20", "2023-11-14 22:13:20Z", "2023-11-14T22:13Z", "2023-11-14T22:13:20.Z",
        "2023-11-14T22:13:20Z ", " 2023-11-14T22:13:20Z", "2023-02-29T00:00:00Z", "2023-13-01T00:00:00Z",
        "2023-11-14T24:00:00Z", "2023-11-14T22:60:00Z", "2023-11-14T22:13:60Z", "2023-11-14T22:13:20+0530",
        "2023-11-14T22:13:20+24:00", "+023-11-14T22:13:20Z", "23-11-14T22:13:20Z", "1700000000"}) {
    EXPECT_FALSE(parse_rfc3339(text)) << text;
  }
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
