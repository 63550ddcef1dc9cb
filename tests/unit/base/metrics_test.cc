#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace kcoral {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

constexpr double kBounds[] = {0.001, 0.5, 2};

TEST(Histogram, WhatIsOnABoundIsBelowIt) {
  Histogram histogram(kBounds);
  histogram.observe(1ms);
  histogram.observe(std::chrono::nanoseconds(1'000'001));
  histogram.observe(500ms);
  histogram.observe(2s);
  const HistogramView view = histogram.view();
  EXPECT_THAT(view.bounds_seconds, ElementsAre(0.001, 0.5, 2));
  EXPECT_THAT(view.counts, ElementsAre(1, 2, 1, 0));
  EXPECT_NEAR(view.sum_seconds, 2.502, 1e-6);
}

TEST(Histogram, WhatIsAboveAllBoundsHasABucketToo) {
  Histogram histogram(kBounds);
  histogram.observe(1h);
  EXPECT_THAT(histogram.view().counts, ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(histogram.view().sum_seconds, 3600);
}

TEST(Histogram, AClockThatWasSetBackTakesNothingAway) {
  Histogram histogram(kBounds);
  histogram.observe(-5s);
  EXPECT_THAT(histogram.view().counts, ElementsAre(1, 0, 0, 0));
  EXPECT_EQ(histogram.view().sum_seconds, 0);
}

TEST(Histogram, NothingIsLostBetweenThreads) {
  constexpr uint64_t kEach = 10'000;
  Histogram histogram(kBounds);
  Counter counter;
  const auto count = [&] {
    for (uint64_t i = 0; i < kEach; ++i) {
      histogram.observe(250ms);
      counter.add(2);
    }
  };
  std::thread other(count);
  count();
  other.join();
  EXPECT_THAT(histogram.view().counts, ElementsAre(0, 2 * kEach, 0, 0));
  EXPECT_EQ(histogram.view().sum_seconds, kEach / 2.0);
  EXPECT_EQ(counter.value(), 4 * kEach);
}

}  // namespace
}  // namespace kcoral
