#include "gateway/body_budget.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kcoral::gateway {
namespace {

TEST(BodyBudget, RefusesWhatHasNoRoomAndTakesNothingThen) {
  const auto budget = std::make_shared<BodyBudget>(10, 1);
  BodyShare one(budget);
  BodyShare two(budget);
  EXPECT_TRUE(one.take_bytes(6));
  EXPECT_TRUE(one.take_blob());
  EXPECT_EQ(one.take_blob().error().kind, ErrorKind::kRequestTooLarge) << "no waiting helps it";
  EXPECT_EQ(two.take_blob().error().kind, ErrorKind::kBusy);
  const auto refused = two.take_bytes(5);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kBusy);
  EXPECT_FALSE(two.take_bytes(~uint64_t{0}));
  EXPECT_EQ(budget->bytes_taken(), 6u);
  EXPECT_EQ(budget->blobs_taken(), 1u);
  EXPECT_TRUE(two.take_bytes(4));
}

TEST(BodyBudget, ANewBodyNeedsRoomForAllThatItAnnounces) {
  const auto budget = std::make_shared<BodyBudget>(10, 1);
  EXPECT_TRUE(budget->check_room(10));
  EXPECT_FALSE(budget->check_room(11));
  BodyShare share(budget);
  ASSERT_TRUE(share.take_bytes(10));
  EXPECT_FALSE(budget->check_room(0)) << "of unknown length";
  share.release();
  EXPECT_TRUE(budget->check_room(0));
}

TEST(BodyBudget, GivesBackOnce) {
  const auto budget = std::make_shared<BodyBudget>(10, 2);
  BodyShare stays(budget);
  ASSERT_TRUE(stays.take_bytes(1));
  {
    BodyShare share(budget);
    ASSERT_TRUE(share.take_bytes(5));
    ASSERT_TRUE(share.take_blob());
    share.release();
    share.release();
    EXPECT_EQ(budget->bytes_taken(), 1u);
    ASSERT_TRUE(share.take_bytes(2));
  }
  EXPECT_EQ(budget->bytes_taken(), 1u);
  EXPECT_EQ(budget->blobs_taken(), 0u);
}

TEST(BodyBudget, IsExactUnderManyThreads) {
  static constexpr uint64_t kBytesMax = 100;
  const auto budget = std::make_shared<BodyBudget>(kBytesMax, 8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&budget, i] {
      for (int round = 0; round < 2000; ++round) {
        BodyShare share(budget);
        while (share.take_bytes(static_cast<uint64_t>(7 + i)) && share.take_blob()) {
          EXPECT_LE(budget->bytes_taken(), kBytesMax);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(budget->bytes_taken(), 0u);
  EXPECT_EQ(budget->blobs_taken(), 0u);
}

}  // namespace
}  // namespace kcoral::gateway
