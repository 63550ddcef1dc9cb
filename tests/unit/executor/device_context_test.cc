// Contexts that are made ahead: when a slot is ready, and what becomes of one whose context is not made.
#include <gmock/gmock.h>

#include "tests/unit/executor/device_harness.h"

namespace kcoral::executor {
namespace {

using testing::HasSubstr;

const std::string kProgram = std::string(kAnswer) + "completed()";

/// A `context_step` (fake_zygote.py) that does `make` instead of making a context.
std::string when_making(const std::string& make) {
  return "def context_step(step):\n"
         "  if step == 'initialise': return send('initialised')\n  " +
         make + "\n";
}

const std::string kOutOfMemory = when_making(
    "send('context_failed', message='a CUDA error: out of memory (CUDA_ERROR_OUT_OF_MEMORY in cuCtxCreate)')");
const std::string kBrokenDevice =
    when_making("send('context_failed', message='a CUDA error: no device (CUDA_ERROR_NO_DEVICE in cuInit)')");

TEST_F(DeviceTest, ASlotIsReadyOnceItsFirstContextIsMade) {
  const auto slot = make_slot("", /*standby=*/1);
  slot->log().on_ask = [](const LeaseAsk&) {};
  slot->start();
  ASSERT_TRUE(slot->log().wait_for_ask(1));
  EXPECT_FALSE(slot->log().asks()[0].for_program());
  slot->settle();
  EXPECT_EQ(slot->log().idle_count(), 0u);
  slot->grant_lease(1, {3});
  ASSERT_TRUE(slot->log().wait_for_idle(1));
  EXPECT_EQ(slot->log().ended_leases(), (std::vector<std::pair<uint64_t, bool>>{{1, false}}));
}

TEST_F(DeviceTest, ABrokenDeviceIsFoundOutBeforeTheSlotIsReady) {
  const auto slot = make_slot(kBrokenDevice, /*standby=*/1);
  slot->start();
  ASSERT_TRUE(slot->log().wait_for_lost(1));
  EXPECT_TRUE(slot->log().lost()[0].permanent);
  EXPECT_THAT(slot->log().lost()[0].reason, HasSubstr("CUDA_ERROR_NO_DEVICE"));
  EXPECT_EQ(slot->log().idle_count(), 0u);
}

TEST_F(DeviceTest, MemoryOfADeviceThatIsFullNowKeepsNoSlotFromItsPrograms) {
  const auto slot = make_slot(kOutOfMemory, /*standby=*/1);
  ASSERT_TRUE(slot->start_and_wait());
  EXPECT_EQ(slot->run(scripted(kProgram)).ending, Ending::kCompleted);
  EXPECT_TRUE(slot->log().lost().empty());
}

TEST_F(DeviceTest, ASlotWhoseTurnDoesNotComeTakesProgramsAllTheSame) {
  const auto slot = make_slot("", /*standby=*/1);
  slot->log().on_ask = [](const LeaseAsk&) {};
  slot->start();
  ASSERT_TRUE(slot->log().wait_for_ask(1));
  advance(limits::kContextWait);
  ASSERT_TRUE(slot->log().wait_for_idle(1));
  EXPECT_EQ(slot->run(scripted(kProgram)).ending, Ending::kCompleted);
  EXPECT_TRUE(slot->log().lost().empty());
}

TEST_F(DeviceTest, ASlotThatWasReadyOnceIsNeverLostForGood) {
  // The device breaks once it was used, and is well again in the end.
  const auto slot = make_slot(
      "if " + is_given("broken") + " and not " + is_given("mended") + ":\n  exec('''" + kBrokenDevice + "''')",
      /*standby=*/1);
  ASSERT_TRUE(slot->start_and_wait());
  give("broken");
  ::kill(slot->executor_pid(), SIGKILL);
  const size_t starts = limits::kStartsBeforeReadyMax + 1;
  ASSERT_TRUE(slot->log().wait_for_lost(1 + starts));
  for (const auto& lost : slot->log().lost()) EXPECT_FALSE(lost.permanent) << lost.reason;
  give("mended");
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_EQ(slot->run(scripted(kProgram)).ending, Ending::kCompleted);
}

TEST_F(DeviceTest, WhatHangsAtTheFirstContextIsFoundOutAndNoReasonToBeLostForGood) {
  // A child shows that it has come there.
  const std::pair<std::string, const char*> cases[] = {
      {"def context_step(step): os.fork(); signal.pause()", "CUDA did not start in time"},
      {when_making("os.fork(); signal.pause()"), "a CUDA context was not made in time"},
  };
  for (const auto& [script, reason] : cases) {
    const auto slot = make_slot(script, /*standby=*/1);
    slot->start();
    ASSERT_TRUE(wait_until([&] { return descendants(slot->executor_pid()).size() == kSlotProcesses + 3; })) << reason;
    ASSERT_TRUE(advance_until([&] { return !slot->log().lost().empty(); })) << reason;
    EXPECT_FALSE(slot->log().lost()[0].permanent);
    EXPECT_EQ(slot->log().lost()[0].reason, reason);
    EXPECT_EQ(slot->log().idle_count(), 0u);
  }
}

TEST_F(DeviceTest, ARuntimeThatStandsByAndCannotBeEndedDoesNotKeepItsDevice) {
  const auto slot =
      make_slot(when_making("return send('context_made') if not " + is_given("hang") + " else signal.pause()") +
                    "may_reap = lambda: not " + is_given("stuck"),
                /*standby=*/1);
  ASSERT_TRUE(slot->start_and_wait());
  give("hang");
  EXPECT_EQ(slot->run(scripted(kProgram + "; signal.pause()")).ending, Ending::kCompleted);
  ASSERT_TRUE(slot->log().wait_for_ask(3)) << "one to end the program's context, and one for the runtime after it";
  give("stuck");
  ASSERT_TRUE(advance_until([&] { return !slot->log().lost().empty(); }));
  EXPECT_FALSE(slot->log().lost()[0].permanent);
  EXPECT_THAT(slot->log().lost()[0].reason, HasSubstr("could not be ended within 10 s"));
  EXPECT_EQ(slot->log().ended_leases().size(), 2u) << "with the loss all others have ended";
}

TEST_F(DeviceTest, ARefillThatFailsIsNotWaitedFor) {
  const auto slot = make_slot("while not " + is_given("start") + ": pass", /*standby=*/1);
  slot->start();
  // What is opened from here on is for a runtime.
  ASSERT_TRUE(wait_until([&] { return descendants(slot->executor_pid()).size() == kSlotProcesses; }));
  leave_descriptors(slot->executor_pid(), 1);
  give("start");
  ASSERT_TRUE(slot->log().wait_for_idle(1)) << "too few descriptors are a shortage, which passes";
}

}  // namespace
}  // namespace kcoral::executor
