#include "store/client_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/limits.h"

namespace kcoral::store {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;

void add(ClientCounts& counts, const std::string& client, int times) {
  for (int i = 0; i < times; ++i) counts.add(client);
}

uint64_t sum(const ClientFigures& figures) {
  uint64_t sum = figures.ended_of_others;
  for (const ClientFigure& each : figures.busiest) sum += each.ended;
  return sum;
}

TEST(ClientCounts, TheBusiestComeFirst) {
  ClientCounts counts;
  EXPECT_THAT(counts.figures().busiest, IsEmpty());
  add(counts, "b", 2);
  add(counts, "c", 5);
  add(counts, "a", 2);
  const ClientFigures figures = counts.figures();
  EXPECT_THAT(figures.busiest, ElementsAre(Field(&ClientFigure::client, "c"), Field(&ClientFigure::client, "a"),
                                           Field(&ClientFigure::client, "b")));
  EXPECT_EQ(figures.ended_of_others, 0u);
}

TEST(ClientCounts, OnlySoManyAreNamedAndTheOthersNeverShrink) {
  ClientCounts counts;
  uint64_t others = 0, total = 0;
  // Everybody comes from behind once, and passes those that are named.
  for (int round = 1; round <= 5; ++round) {
    for (int client = 0; client < 100; ++client) {
      for (int i = 0; i < round; ++i, ++total) counts.add("client-" + std::to_string(client));
      const ClientFigures figures = counts.figures();
      EXPECT_LE(figures.busiest.size(), limits::kClientsNamedMax);
      EXPECT_GE(figures.ended_of_others, others);
      others = figures.ended_of_others;
    }
  }
  EXPECT_EQ(sum(counts.figures()), total);
}

TEST(ClientCounts, AFloodOfNamesNeitherGrowsItNorHidesTheBusiest) {
  ClientCounts counts;
  add(counts, "steady", 50);
  uint64_t others = 0;
  constexpr size_t kFlood = 10 * limits::kClientsCountedMax;
  for (size_t i = 0; i < kFlood; ++i) {
    counts.add("name-" + std::to_string(i));
    if (i % 100 != 0) continue;
    const ClientFigures figures = counts.figures();
    EXPECT_GE(figures.ended_of_others, others);
    others = figures.ended_of_others;
  }
  const ClientFigures figures = counts.figures();
  EXPECT_EQ(figures.busiest.front().client, "steady");
  EXPECT_EQ(figures.busiest.front().ended, 50u);
  EXPECT_EQ(sum(figures), 50 + kFlood);
}

}  // namespace
}  // namespace kcoral::store
