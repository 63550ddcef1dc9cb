// Programs that use a device: what the executor promises of their leases and their ends.
#include <gmock/gmock.h>

#include "tests/unit/executor/device_harness.h"

namespace kcoral::executor {
namespace {

using testing::HasSubstr;

TEST_F(DeviceTest, AProgramForMoreGpusThanThereAreFailsByItself) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  const RunReport report = slot->run(with_gpu(*slot, "started(0)", /*gpu_count=*/2));
  EXPECT_EQ(report.ending, Ending::kFailed);
  EXPECT_EQ(report.error_kind, "unavailable");
  EXPECT_EQ(report.error_message, "the program needs 2 GPUs, and this server has 1");
  EXPECT_EQ(slot->run(with_gpu(*slot, std::string(kAnswer) + "completed()")).ending, Ending::kCompleted);
  EXPECT_TRUE(slot->log().lost().empty());
}

TEST_F(DeviceTest, OnlyARuntimeWhosePlaceHasOneDeviceIsUsedAgain) {
  const std::string program = std::string(kAnswer) + "completed()\nreceive()\nrun_program()";
  for (const std::vector<int>& devices : {std::vector<int>{3}, {3, 4}}) {
    const auto slot = make_slot("", /*standby=*/0, [&](ExecutorConfig& config) {
      config.devices = devices;
      config.runs_per_runtime = 0;
    });
    ASSERT_TRUE(slot->start_and_wait());
    const int gpu_count = static_cast<int>(devices.size());
    EXPECT_EQ(slot->run(with_gpu(*slot, program, gpu_count)).ending, Ending::kCompleted);
    const int first = slot->log().last_pid();
    EXPECT_EQ(slot->run(with_gpu(*slot, program, gpu_count)).ending, Ending::kCompleted);
    EXPECT_EQ(slot->log().last_pid() == first, devices.size() == 1) << devices.size();
  }
}

TEST_F(DeviceTest, ProcessesThatCannotBeEndedQuarantineTheDeviceThatTheyHold) {
  // The first process of a namespace does not end before its parent has reaped the others.
  const auto slot = make_slot("may_reap = lambda: " + is_given("end"));
  ASSERT_TRUE(slot->start_and_wait());
  Assignment assignment = with_gpu(*slot, std::string(kTakeLease) + "import time; time.sleep(60)");
  assignment.timeout = std::chrono::milliseconds(100);
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_record("deadline_passed"));
  advance(limits::kKillWait);
  ASSERT_TRUE(slot->log().wait_for_quarantine(1));
  EXPECT_THAT(slot->log().last_report().error_message, HasSubstr("and the slot and its device are quarantined"));
  EXPECT_TRUE(slot->log().ended_leases().empty()) << "they may still use it";
  give("end");
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  ASSERT_EQ(slot->log().ended_leases().size(), 1u);
  EXPECT_TRUE(slot->log().ended_leases()[0].second);
}

/// Has had the device and given it back; what follows is the end of its answer.
const std::string kLeavesAContext = std::string(kTakeLease) + "send('lease_release', index=0)\n" + kRest;

/// Grants what programs ask for, and leaves who would end a context waiting.
void grant_programs_only(SlotHarness& slot) {
  slot.log().on_ask = [&slot](const LeaseAsk& ask) {
    if (ask.for_program()) slot.executor().grant_lease(ask.id, {3});
  };
}

const std::string kGoesOnAfterItsAnswer = kLeavesAContext + "completed(); signal.pause()";

/// Until an answered program, which goes on, waits for the device under which its context is to end.
void wait_after_answer(SlotHarness& slot, const Assignment& goes_on) {
  ASSERT_TRUE(slot.start_and_wait());
  grant_programs_only(slot);
  slot.begin(goes_on);
  ASSERT_TRUE(slot.log().wait_for_outcome(1));
  ASSERT_TRUE(slot.log().wait_for_context_ask());
}

TEST_F(DeviceTest, AnAnsweredProgramWaitsForTheDeviceToEndItsContext) {
  const auto slot = make_slot();
  ASSERT_NO_FATAL_FAILURE(wait_after_answer(*slot, with_gpu(*slot, kGoesOnAfterItsAnswer)));
  const pid_t runtime = slot->log().last_pid();
  EXPECT_TRUE(is_alive(runtime));
  slot->grant_lease(slot->log().asks().back().id, {3});
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_FALSE(is_alive(runtime));
  ASSERT_EQ(slot->log().ended_leases().size(), 2u);
  EXPECT_TRUE(slot->log().ended_leases().back().second);
  const std::string records = slot->log().records_text();
  EXPECT_EQ(records.find("lease_released"), records.rfind("lease_released")) << "one was granted to the program";
}

TEST_F(DeviceTest, AnAnsweredProgramDoesNotWaitForTheDeviceForEver) {
  const auto slot = make_slot();
  ASSERT_NO_FATAL_FAILURE(wait_after_answer(*slot, with_gpu(*slot, kGoesOnAfterItsAnswer)));
  advance(limits::kContextEndWait);
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_FALSE(is_alive(slot->log().last_pid()));
  EXPECT_EQ(slot->log().ended_leases().size(), 2u) << "what it waited for is withdrawn";
}

TEST_F(DeviceTest, AnAnsweredProgramThatEndsByItselfWaitsForNothing) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  grant_programs_only(*slot);
  EXPECT_EQ(slot->run(with_gpu(*slot, kLeavesAContext + "completed(); os._exit(0)")).ending, Ending::kCompleted);
  const size_t asks = slot->log().asks().size();
  const std::string wait = "completed()\nwhile not " + is_given("end") + ": pass\nos._exit(0)";
  slot->begin(with_gpu(*slot, kLeavesAContext + wait));
  ASSERT_TRUE(slot->log().wait_for_ask(asks + 2)) << "the program's, and the one to end its context";
  give("end");
  EXPECT_TRUE(slot->log().wait_for_idle(3));
}

TEST_F(DeviceTest, AnAnsweredProgramIsStillHeldToItsMemory) {
  const auto slot = make_slot("", /*standby=*/0, [](ExecutorConfig& config) { config.memory_bytes_max = 64 << 20; });
  ASSERT_TRUE(slot->start_and_wait());
  grant_programs_only(*slot);
  const RunReport report =
      slot->run(with_gpu(*slot, kLeavesAContext + "completed()\nheld = b'x' * (128 << 20)\nsignal.pause()"));
  EXPECT_EQ(report.ending, Ending::kCompleted) << "what comes after the answer does not change it";
}

// --- processes that serve several programs ---

using Ended = std::vector<std::pair<uint64_t, bool>>;

void use_again(ExecutorConfig& config) { config.runs_per_runtime = 0; }

const std::string kUsesDevice = std::string(kTakeLease) + kRest + "completed()\n";
const std::string kGivesBack = "send('lease_release', index=3)\n";

TEST_F(DeviceTest, TheDeviceOfAnAnsweredProgramPassesOnBeforeItsProcessIsReadyAgain) {
  const auto slot = make_slot("", /*standby=*/0, use_again);
  ASSERT_TRUE(slot->start_and_wait());
  slot->begin(with_gpu(
      *slot, kUsesDevice + kGivesBack + "receive()\nwhile not " + is_given("ready") + ": pass\nrun_program()"));
  ASSERT_TRUE(slot->log().wait_for_ended_lease(1));
  EXPECT_EQ(slot->log().ended_leases(), (Ended{{1, false}})) << "its process lives on";
  EXPECT_EQ(slot->log().idle_count(), 1u);
  give("ready");
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_TRUE(slot->log().wait_for_record("lease_released"));
}

TEST_F(DeviceTest, AProcessThatIsNotUsedAgainKeepsTheDeviceToItsEnd) {
  const char* endings[] = {"signal.pause()", "receive()\nsignal.pause()",
                           "receive()\nsend('unfit', message='no')\nsignal.pause()"};
  for (const char* ending : endings) {
    const bool gives_back = ending == endings[0];  // in vain: nobody means to use it again
    const auto slot = make_slot("", /*standby=*/0, gives_back ? SlotHarness::Adjust() : use_again);
    ASSERT_TRUE(slot->start_and_wait());
    slot->begin(with_gpu(*slot, kUsesDevice + (gives_back ? kGivesBack : "") + ending));
    ASSERT_TRUE(slot->log().wait_for_outcome(1));
    ASSERT_TRUE(slot->log().wait_for_idle(2)) << ending;
    EXPECT_EQ(slot->log().ended_leases(), (Ended{{1, true}})) << ending;
  }
}

TEST_F(DeviceTest, AProcessThatTurnsOutUnfitEndsItsContextUnderALease) {
  const auto slot = make_slot("", /*standby=*/0, use_again);
  ASSERT_TRUE(slot->start_and_wait());
  slot->run(with_gpu(*slot, kUsesDevice + kGivesBack + "receive()\nsend('unfit', message='no')\nsignal.pause()"));
  ASSERT_EQ(slot->log().asks().size(), 2u);
  EXPECT_FALSE(slot->log().asks()[1].for_program());
  EXPECT_EQ(slot->log().ended_leases(), (Ended{{1, false}, {2, true}}));
}

TEST_F(DeviceTest, AContextOfAnEarlierProgramEndsUnderALeaseToo) {
  const auto slot = make_slot("", /*standby=*/0, use_again);
  ASSERT_TRUE(slot->start_and_wait());
  slot->run(with_gpu(*slot, kUsesDevice + kGivesBack + "receive()\nrun_program()"));
  const int pid = slot->log().last_pid();
  slot->run(
      with_gpu(*slot, std::string(kAnswer) + "completed()\nreceive()\nsend('unfit', message='no')\nsignal.pause()"));
  EXPECT_EQ(slot->log().last_pid(), pid);
  ASSERT_EQ(slot->log().asks().size(), 2u);
  EXPECT_FALSE(slot->log().asks()[1].for_program());
  EXPECT_EQ(slot->log().ended_leases(), (Ended{{1, false}, {2, true}}));
}

}  // namespace
}  // namespace kcoral::executor
