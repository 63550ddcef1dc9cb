#include "store/fair_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kcoral::store {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::ElementsAre;
using testing::Le;

class FairQueueTest : public testing::Test {
 protected:
  using Item = FairQueue::Item;

  Item push(const std::string& client, int priority = 0, bool for_several_gpus = false) {
    const Item item{++last_seq_, client, priority, for_several_gpus};
    queue_.push(item);
    return item;
  }
  /// Starts the next one, and ends it at once.
  Item serve(std::chrono::microseconds took = 1ms, bool for_several_gpus = false) {
    const Item item = queue_.next(for_several_gpus).value();
    const Uuid id = Uuid::random();
    queue_.start(id, item, {});
    queue_.ended(id, took);
    return item;
  }
  std::vector<int64_t> serve_all() {
    std::vector<int64_t> order;
    while (queue_.size() > 0) order.push_back(serve().seq);
    return order;
  }

  FairQueue queue_;
  int64_t last_seq_ = 0;
};

TEST_F(FairQueueTest, OneClientIsServedInTheOrderOfSubmission) {
  for (int i = 0; i < 20; ++i) push("a");
  std::vector<int64_t> expected;
  for (int64_t seq = 1; seq <= 20; ++seq) expected.push_back(seq);
  EXPECT_EQ(serve_all(), expected);
}

TEST_F(FairQueueTest, KnowsSinceWhenTheOldestOfBothKindsIsThere) {
  EXPECT_EQ(queue_.oldest_submitted(), std::nullopt);
  const Item first{1, "a", 0, false, SteadyTime(5s)}, second{2, "b", 9, true, SteadyTime(7s)};
  queue_.push(second);
  EXPECT_EQ(queue_.oldest_submitted(), SteadyTime(7s));
  queue_.push(first);
  EXPECT_EQ(queue_.oldest_submitted(), SteadyTime(5s));
  const Uuid id = Uuid::random();
  const Item started = queue_.next(false).value();
  queue_.start(id, started, {});
  EXPECT_EQ(queue_.oldest_submitted(), SteadyTime(7s));
  queue_.undo_start(id, started);
  EXPECT_EQ(queue_.oldest_submitted(), SteadyTime(5s)) << "it knows its time again";
  queue_.remove(first);
  queue_.remove(second);
  EXPECT_EQ(queue_.oldest_submitted(), std::nullopt);
}

TEST_F(FairQueueTest, AHigherPriorityComesFirst) {
  push("a", 0);
  push("a", 5);
  push("b", -5);
  push("b", 5);
  EXPECT_THAT(serve_all(), ElementsAre(2, 4, 1, 3));
}

TEST_F(FairQueueTest, ProgramsForSeveralGpusHaveAnOrderOfTheirOwn) {
  push("a");
  const Item several = push("a", 0, true);
  EXPECT_EQ(queue_.next(true)->seq, several.seq);
  EXPECT_EQ(queue_.next(false)->seq, 1);
  serve(1ms, true);
  EXPECT_FALSE(queue_.next(true));
  EXPECT_EQ(queue_.size(), 1u);
}

/// How much executor time each client got while all of them always had something queued.
std::map<std::string, std::chrono::microseconds> shares_of(
    const std::vector<std::pair<std::string, std::chrono::microseconds>>& clients, int starts, size_t slots) {
  FairQueue queue;
  std::map<std::string, std::chrono::microseconds> took(clients.begin(), clients.end());
  std::map<std::string, std::chrono::microseconds> got;
  int64_t seq = 0;
  for (const auto& [client, each] : clients) {
    for (int i = 0; i < 4; ++i) queue.push({++seq, client, 0, false});
  }
  std::deque<std::pair<Uuid, std::string>> running;
  for (int i = 0; i < starts; ++i) {
    if (running.size() == slots) {
      queue.ended(running.front().first, took[running.front().second]);
      running.pop_front();
    }
    const FairQueue::Item item = queue.next(false).value();
    running.emplace_back(Uuid::random(), item.client);
    queue.start(running.back().first, item, {});
    got[item.client] += took[item.client];
    queue.push({++seq, item.client, 0, false});
  }
  return got;
}

TEST_F(FairQueueTest, ClientsOfOnePriorityGetEqualTimeHoweverLongTheirProgramsRun) {
  const auto got = shares_of({{"short", 10ms}, {"long", 400ms}, {"middle", 60ms}}, 20'000, 1);
  const double all = static_cast<double>((got.at("short") + got.at("long") + got.at("middle")).count());
  // One eighth is the oldest's, whoever's that is; the shares are those of the rest.
  constexpr double kOldest = 1.0 / FairQueue::kOldestShare;
  for (const auto& [client, time] : got) {
    const double share = static_cast<double>(time.count()) / all;
    EXPECT_GT(share, (1 - kOldest) / 3 * 0.95) << client;
    EXPECT_LT(share, (1 - kOldest) / 3 * 1.05 + kOldest) << client;
  }
}

TEST_F(FairQueueTest, WhatRunsAtOnceIsChargedBeforeItEnds) {
  const auto got = shares_of({{"a", 100ms}, {"b", 100ms}}, 1000, 8);
  EXPECT_NEAR(static_cast<double>(got.at("a").count()) / static_cast<double>(got.at("b").count()), 1, 0.05);
}

TEST_F(FairQueueTest, AFloodOfOneClientHoldsUpAnotherForOneTurn) {
  for (int i = 0; i < 1000; ++i) push("flood");
  for (int i = 0; i < 20; ++i) serve(100ms);
  const Item late = push("late");
  std::vector<int64_t> order;
  for (int i = 0; i < 3; ++i) order.push_back(serve(100ms).seq);
  EXPECT_THAT(order, testing::Contains(late.seq));
}

TEST_F(FairQueueTest, AClientThatKeepsNothingQueuedIsChargedAllTheSame) {
  // "one" sends its next program when the last has ended, "many" has queued all of them.
  for (int i = 0; i < 2000; ++i) push("many");
  push("one");
  std::map<std::string, int> starts;
  for (int i = 0; i < 1000; ++i) {
    const Item item = serve(100ms);
    ++starts[item.client];
    if (item.client == "one") push("one");
  }
  EXPECT_GT(starts["many"], 450);
  EXPECT_GT(starts["one"], 350);
}

TEST_F(FairQueueTest, AWrongEstimateIsPutRight) {
  for (int i = 0; i < 40; ++i) push("a");
  for (int i = 0; i < 40; ++i) push("b");
  serve(3600s);  // "a" ran for an hour once
  std::map<std::string, int> starts;
  for (int i = 0; i < 30; ++i) ++starts[serve(1ms).client];
  EXPECT_GE(starts["b"], 25) << "all but the oldest's turns";
  // A client whose next program was taken for that long is not held to it once it is known to be short.
  FairQueue other;
  int64_t seq = 0;
  const auto start = [&other](const Uuid& id) {
    const Item item = other.next(false).value();
    other.start(id, item, {});
    return item;
  };
  for (int i = 0; i < 10; ++i) other.push({++seq, "a", 0, false});
  const Uuid first = Uuid::random();
  start(first);
  other.ended(first, 60s);
  const Uuid second = Uuid::random();
  start(second);  // charged some 15 s
  other.ended(second, 1ms);
  for (int i = 0; i < 2000; ++i) other.push({++seq, "b", 0, false});
  int before_a = 0;
  for (Uuid id = Uuid::random(); start(id).client == "b"; id = Uuid::random()) {
    other.ended(id, 50ms);
    ++before_a;
  }
  EXPECT_LE(before_a, 7) << "the oldest's turn comes by then";
}

TEST_F(FairQueueTest, NobodyStarves) {
  // The bound of the header, under a load that prefers everybody else: newcomers of the highest priority without end.
  for (int older = 0; older < 5; ++older) {
    for (const auto took : {1ms, 50ms, 3000ms}) {
      FairQueue queue;
      int64_t seq = 0;
      for (int i = 0; i < older; ++i) queue.push({++seq, "old", -100, false});
      const int64_t starving = ++seq;
      queue.push({starving, "starving", -100, false});
      std::chrono::microseconds of_older{0};
      std::chrono::microseconds of_others{0};
      for (int64_t served = 0; served != starving;) {
        queue.push({++seq, "client-" + std::to_string(seq), 100, false});
        const FairQueue::Item item = queue.next(false).value();
        const Uuid id = Uuid::random();
        queue.start(id, item, {});
        queue.ended(id, took);
        served = item.seq;
        if (served < starving) of_older += took;
        if (served > starving) of_others += took;
        const auto slack = took + FairQueue::kOldestShare * FairQueue::kQuantum;
        ASSERT_LE(of_others, (FairQueue::kOldestShare - 1) * of_older + slack)
            << older << " older, each " << std::chrono::microseconds(took).count() << " us";
      }
    }
  }
}

TEST_F(FairQueueTest, PositionsCountTheSameClientsRequestsAhead) {
  const Item first = push("a");
  push("b");
  const Item second = push("a");
  const Item urgent = push("a", 10);
  EXPECT_EQ(queue_.position(urgent), 0u);
  EXPECT_EQ(queue_.position(first), 1u);
  EXPECT_EQ(queue_.position(second), 2u);
  queue_.remove(first);
  EXPECT_EQ(queue_.position(second), 1u);
  EXPECT_EQ(queue_.size_of("a"), 2u);
  EXPECT_EQ(queue_.size_of("nobody"), 0u);
}

TEST_F(FairQueueTest, AStartThatIsUndoneNeverHappened) {
  for (int i = 0; i < 3; ++i) {
    push("a");
    push("b");
  }
  for (int i = 0; i < 5; ++i) {
    const Item item = queue_.next(false).value();
    const Uuid id = Uuid::random();
    queue_.start(id, item, {});
    EXPECT_EQ(queue_.size(), 5u);
    queue_.undo_start(id, item);
    EXPECT_EQ(queue_.size(), 6u);
    EXPECT_EQ(queue_.position(item), 0u);
  }
  EXPECT_EQ(serve_all().size(), 6u);
}

TEST_F(FairQueueTest, RandomUseLosesAndDoublesNothing) {
  const auto seed = static_cast<uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto draw = [&random](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  std::map<int64_t, Item> queued;
  std::map<Uuid, Item> running;
  for (int step = 0; step < 20'000; ++step) {
    const int what = draw(10);
    if (what < 4) {
      const Item item = push("client-" + std::to_string(draw(7)), draw(3), draw(5) == 0);
      queued[item.seq] = item;
    } else if (what < 7) {
      const auto next = queue_.next(draw(2) == 0);
      if (!next) continue;
      ASSERT_TRUE(queued.erase(next->seq) == 1) << next->seq;
      const Uuid id = Uuid::random();
      queue_.start(id, *next, {});
      running[id] = *next;
    } else if (what < 9 && !running.empty()) {
      const auto run = std::next(running.begin(), draw(static_cast<int>(running.size())));
      if (draw(4) == 0) {
        queue_.undo_start(run->first, run->second);
        queued[run->second.seq] = run->second;
      } else {
        queue_.ended(run->first, std::chrono::microseconds(draw(2'000'000)));
      }
      running.erase(run);
    } else if (!queued.empty()) {
      const auto item = std::next(queued.begin(), draw(static_cast<int>(queued.size())));
      queue_.remove(item->second);
      queued.erase(item);
    }
    ASSERT_EQ(queue_.size(), queued.size());
  }
  while (const auto next = queue_.next(false)) {
    ASSERT_EQ(queued.erase(next->seq), 1u);
    queue_.start(Uuid::random(), *next, {});
  }
  while (const auto next = queue_.next(true)) {
    ASSERT_EQ(queued.erase(next->seq), 1u);
    queue_.start(Uuid::random(), *next, {});
  }
  EXPECT_TRUE(queued.empty());
}

}  // namespace
}  // namespace kcoral::store
