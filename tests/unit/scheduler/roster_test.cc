#include "scheduler/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace kcoral::scheduler {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RosterTest : public testing::Test {
 protected:
  void offer(const std::string& slot, std::vector<int> devices = {}) { roster_.offer({slot, 1}, devices); }
  std::string take(bool for_several_gpus = false) {
    const auto taken = roster_.take(for_several_gpus);
    return taken ? taken->name : "none";
  }
  /// Takes the next, which runs from then on.
  std::string run() {
    const auto taken = roster_.take(false);
    if (!taken) return "none";
    roster_.assign(*taken, store::Claim());
    return taken->name;
  }
  std::vector<std::string> told_;
  const Roster::OnClaim tell_ = [this](const std::string& slot, const Result<std::optional<store::Claim>>& claim) {
    told_.push_back(slot + (!claim ? " error" : *claim ? " claim" : " nothing"));
  };
  const Roster::OnCancel cancel_ = [this](const store::Fence& fence) {
    told_.push_back("cancel attempt " + std::to_string(fence.attempt));
  };
  Roster roster_{Roster::Order::kLongestIdle, tell_, cancel_};
};

TEST_F(RosterTest, WhoHasBeenIdleTheLongestIsNext) {
  EXPECT_EQ(take(), "none");
  offer("b");
  offer("a");
  EXPECT_EQ(run(), "b");
  offer("b");
  EXPECT_EQ(run(), "a");
  EXPECT_EQ(run(), "b");
  EXPECT_EQ(take(), "none");
  EXPECT_THAT(told_, ElementsAre("b claim", "a claim", "b claim"));
}

TEST_F(RosterTest, WhoHasBeenIdleTheShortestIsNextWhereProgramsShareProcesses) {
  Roster roster(Roster::Order::kShortestIdle, tell_, cancel_);
  for (const char* slot : {"a", "b", "c"}) roster.offer({slot, 1}, {});
  const auto run = [&roster] {
    const auto taken = roster.take(/*for_several_gpus=*/false);
    if (taken) roster.assign(*taken, store::Claim());
    return taken ? taken->name : "none";
  };
  EXPECT_EQ(run(), "c");
  roster.offer({"c", 1}, {});
  EXPECT_EQ(run(), "c");
  EXPECT_EQ(run(), "b");
}

TEST_F(RosterTest, TheDeviceWithTheFewestBusySlotsIsNext) {
  for (const char* slot : {"0a", "0b", "0c"}) offer(slot, {0});
  for (const char* slot : {"1a", "1b", "1c"}) offer(slot, {1});
  EXPECT_EQ(run(), "0a");
  EXPECT_EQ(run(), "1a");
  EXPECT_EQ(run(), "0b");
  EXPECT_EQ(run(), "1b");
  EXPECT_TRUE(roster_.withdraw("none of these") == false);
  offer("0a", {0});
  offer("0b", {0});
  EXPECT_EQ(run(), "0c") << "nothing runs on device 0";
  EXPECT_EQ(run(), "0a");
  roster_.withdraw("1a");
  roster_.withdraw("1b");
  EXPECT_EQ(run(), "1c") << "what was lost is busy no more";
}

TEST_F(RosterTest, SlotsForSeveralGpusTakeNothingElse) {
  offer("both", {0, 1});
  offer("one", {0});
  EXPECT_EQ(take(/*for_several_gpus=*/true), "both");
  EXPECT_EQ(take(/*for_several_gpus=*/true), "none");
  EXPECT_EQ(take(), "one");
}

TEST_F(RosterTest, ASlotWithoutAUsableDeviceTakesNothing) {
  offer("0", {0});
  offer("both", {0, 1});
  roster_.set_unusable_devices({0});
  EXPECT_EQ(take(), "none");
  EXPECT_EQ(take(/*for_several_gpus=*/true), "both") << "one of its devices may be enough";
  roster_.set_unusable_devices({});
  EXPECT_EQ(take(), "0");
}

TEST_F(RosterTest, WhoIsPutBackKeepsItsPlace) {
  offer("a");
  offer("b");
  roster_.put_back(*roster_.take(false));
  EXPECT_EQ(take(), "a");
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(RosterTest, WhoIsWithdrawnWhileTakenIsToldAllTheSame) {
  offer("a");
  EXPECT_TRUE(roster_.withdraw("a"));
  EXPECT_EQ(take(), "none");
  offer("a");
  const auto taken = roster_.take(false);
  EXPECT_FALSE(roster_.withdraw("a"));
  roster_.put_back(*taken);
  EXPECT_THAT(told_, ElementsAre("a nothing"));
  EXPECT_EQ(take(), "none");

  offer("a");
  const auto again = roster_.take(false);
  EXPECT_FALSE(roster_.withdraw("a"));
  roster_.assign(*again, store::Claim());
  EXPECT_THAT(told_, ElementsAre("a nothing", "a claim"));
}

TEST_F(RosterTest, ACancellationIsHandedOnBehindItsClaim) {
  offer("a");
  run();
  roster_.cancel({Uuid::random(), 3});
  EXPECT_THAT(told_, ElementsAre("a claim", "cancel attempt 3"));
}

TEST_F(RosterTest, WhoGetsAnErrorIsNotIdleUntilItIsOfferedAgain) {
  offer("a");
  roster_.assign(*roster_.take(false), fail(ErrorKind::kBusy, "no space"));
  EXPECT_THAT(told_, ElementsAre("a error"));
  EXPECT_EQ(take(), "none");
  offer("a");
  EXPECT_EQ(take(), "a");
}

}  // namespace
}  // namespace kcoral::scheduler
