#include "gateway/exposition.h"

#include <gtest/gtest.h>

namespace kcoral::gateway {
namespace {

TEST(Exposition, AFamilyHasItsHelpAndTypeBeforeItsSamples) {
  Exposition text;
  text.counter("a_total", "What a is.", 3);
  text.begin("b", Exposition::Type::kGauge, "What b is.");
  text.sample("x", "one", 0.5);
  text.sample("x", "two", 0);
  EXPECT_EQ(std::move(text).take(),
            "# HELP a_total What a is.\n# TYPE a_total counter\na_total 3\n"
            "# HELP b What b is.\n# TYPE b gauge\nb{x=\"one\"} 0.5\nb{x=\"two\"} 0\n");
}

TEST(Exposition, ALabelValueEndsWhereItEnds) {
  Exposition text;
  text.begin("a", Exposition::Type::kGauge, "A.");
  text.sample("x", "\"} 1\nb 2\\\r\tÄ", 1);
  const std::string all = std::move(text).take();
  EXPECT_EQ(all.substr(all.find('{')), "{x=\"\\\"} 1\\nb 2\\\\\r\tÄ\"} 1\n");
}

TEST(Exposition, NumbersLoseNothing) {
  Exposition text;
  text.gauge("a", "A.", 1764521086.123456);
  text.gauge("b", "B.", 9007199254740991.0);
  text.gauge("c", "C.", 0.000025);
  const std::string all = std::move(text).take();
  EXPECT_NE(all.find("\na 1764521086.123456\n"), std::string::npos) << all;
  EXPECT_NE(all.find("\nb 9007199254740991\n"), std::string::npos) << all;
  EXPECT_NE(all.find("\nc 2.5e-05\n"), std::string::npos) << all;
}

TEST(Exposition, BucketsOfAHistogramAddUp) {
  Exposition text;
  text.begin("t_seconds", Exposition::Type::kHistogram, "T.");
  text.histogram({{0.001, 0.5, 10}, {2, 0, 3, 4}, 61.5});
  EXPECT_EQ(std::move(text).take(),
            "# HELP t_seconds T.\n# TYPE t_seconds histogram\n"
            "t_seconds_bucket{le=\"0.001\"} 2\nt_seconds_bucket{le=\"0.5\"} 2\nt_seconds_bucket{le=\"10\"} 5\n"
            "t_seconds_bucket{le=\"+Inf\"} 9\nt_seconds_sum 61.5\nt_seconds_count 9\n");
}

}  // namespace
}  // namespace kcoral::gateway
