#include "gateway/abandonment.h"

#include <gtest/gtest.h>

#include "tests/unit/gateway/fake_store.h"

namespace kcoral::gateway {
namespace {

using namespace std::chrono_literals;

class AbandonmentTest : public ::testing::Test {
 protected:
  explicit AbandonmentTest(std::optional<std::chrono::milliseconds> after = 10s) : abandonment(after, store) {}

  void pass(std::chrono::seconds time) {
    clock.advance(time);
    for (IoThread* io : {&one, &two}) io->timers.run_due(clock.now());
  }
  /// What was cancelled until now.
  std::vector<FakeStore::Cancellation> cancellations() {
    std::atomic<bool> reached = false;
    store.status(Uuid(), [&](const auto&) { reached = true; });
    store.wait_until([&] { return reached.load(); });
    return store.cancellations();
  }
  const FakeStore::Cancellation abandoned() const { return {id, store::CancelBy::kNobody}; }

  FakeClock clock;
  FakeStore store;
  IoThread one{clock, *Mailbox::create()};
  IoThread two{clock, *Mailbox::create()};
  Abandonment abandonment;
  const Uuid id = Uuid::random();
};

TEST_F(AbandonmentTest, WhatNobodyWaitsForIsCancelledAfterAWhile) {
  abandonment.arrive(id);
  pass(100s);
  abandonment.leave_unanswered(id, one);
  pass(9s);
  EXPECT_TRUE(cancellations().empty());
  pass(1s);
  EXPECT_EQ(cancellations(), std::vector{abandoned()});
  pass(100s);
  EXPECT_EQ(cancellations().size(), 1u);
  EXPECT_FALSE(one.timers.next());
}

TEST_F(AbandonmentTest, WhoWasAnsweredHasNotAbandonedIt) {
  abandonment.arrive(id);
  abandonment.leave(id, clock.now());
  pass(100s);
  EXPECT_TRUE(cancellations().empty());
}

TEST_F(AbandonmentTest, AnotherClientThatWaitsKeepsIt) {
  abandonment.arrive(id);
  abandonment.arrive(id);
  abandonment.leave_unanswered(id, one);
  pass(100s);
  EXPECT_TRUE(cancellations().empty());
  abandonment.leave_unanswered(id, two);
  pass(9s);
  EXPECT_TRUE(cancellations().empty()) << "the while counts from the last one";
  pass(1s);
  pass(10s);  // whichever thread looks
  EXPECT_EQ(cancellations(), std::vector{abandoned()});
}

TEST_F(AbandonmentTest, WhoComesBackInTimeKeepsIt) {
  abandonment.arrive(id);
  abandonment.leave_unanswered(id, one);
  pass(5s);
  abandonment.arrive(id);
  pass(4s);
  abandonment.leave_unanswered(id, two);
  pass(2s);
  EXPECT_TRUE(cancellations().empty());
  pass(8s);
  EXPECT_EQ(cancellations(), std::vector{abandoned()});
}

TEST_F(AbandonmentTest, WhoOnlyLookedInDoesNotKeepIt) {
  abandonment.arrive(id);
  abandonment.leave_unanswered(id, one);
  pass(5s);
  abandonment.arrive(id);
  abandonment.leave(id, clock.now());
  pass(9s);
  EXPECT_TRUE(cancellations().empty());
  pass(1s);
  EXPECT_EQ(cancellations(), std::vector{abandoned()});
}

TEST_F(AbandonmentTest, OneTimerIsEnoughForAnyNumberOfClients) {
  for (int i = 0; i < 1000; ++i) {
    abandonment.arrive(id);
    abandonment.leave_unanswered(id, one);
  }
  pass(10s);
  EXPECT_EQ(cancellations(), std::vector{abandoned()});
}

TEST_F(AbandonmentTest, RequestsDoNotCountForEachOther) {
  const Uuid other = Uuid::random();
  abandonment.arrive(id);
  abandonment.arrive(other);
  abandonment.leave_unanswered(id, one);
  pass(10s);
  EXPECT_EQ(cancellations(), std::vector{abandoned()});
  abandonment.leave(other, clock.now());
}

TEST_F(AbandonmentTest, AServerThatStopsKeepsEverything) {
  abandonment.arrive(id);
  abandonment.leave_unanswered(id, one);
  abandonment.stop();
  pass(10s);
  EXPECT_TRUE(cancellations().empty());
}

class AbandonmentForEver : public AbandonmentTest {
 protected:
  AbandonmentForEver() : AbandonmentTest(std::nullopt) {}
};

TEST_F(AbandonmentForEver, NothingIsCancelled) {
  abandonment.arrive(id);
  abandonment.leave_unanswered(id, one);
  pass(100000s);
  EXPECT_TRUE(cancellations().empty());
  EXPECT_FALSE(one.timers.next());
}

}  // namespace
}  // namespace kcoral::gateway
