// Leases of programs: granted, waited for, and given back however the process ends.
#include "tests/unit/executor/scripted_harness.h"

namespace kcoral::executor {
namespace {

using ScriptedLease = Scripted;  // a suite of its own

TEST_F(ScriptedLease, WithoutDevicesThereIsNoLease) {
  expect_error("started(0); send('lease_request', index=0)\nimport time; time.sleep(60)", "engine",
               "there is nothing to lease");
}

TEST_F(ScriptedLease, LeaseIsGranted) {
  const size_t before = slot_->log().asks().size();
  Assignment assignment =
      slot_->make_assignment(scripted("started(0)\n"
                                      "send('lease_request', index=0)\n"
                                      "frame, fds = receive()\n"
                                      "assert frame == {'type': 'lease_granted', 'devices': [0]}, frame\n"
                                      "send('lease_release', index=0)\n"
                                      "started(1); failed(1, 'runtime', 'enough')\n"
                                      "import time; time.sleep(60)\n"));  // one that has ended is not waited for
  assignment.gpu_count = 1;
  EXPECT_EQ(slot_->run(assignment).error_message, "enough");
  const auto asks = slot_->log().asks();
  const auto ended = slot_->log().ended_leases();
  ASSERT_EQ(asks.size(), before + 2);
  ASSERT_EQ(ended.size(), before + 2);
  EXPECT_EQ(asks[before].devices, std::vector<int>{3});
  EXPECT_TRUE(asks[before].for_program());
  EXPECT_FALSE(ended[before].second) << "its process lived on";
  EXPECT_FALSE(asks[before + 1].for_program()) << "the end of what may be a context has a lease of its own";
  EXPECT_TRUE(ended[before + 1].second);
  for (const char* record : {"lease_requested", "\"lease_granted\",\"device\":3", "lease_released"}) {
    EXPECT_TRUE(slot_->log().wait_for_record(record)) << record;
  }
}

TEST_F(ScriptedLease, LeaseOfAProcessThatEndsIsGivenBackOnceAfterItsEnd) {
  for (const char* ending : {"os._exit(3)", "os.kill(os.getpid(), 9)", "failed(0, 'runtime', 'enough')"}) {
    const size_t before = slot_->log().ended_leases().size();
    Assignment assignment = slot_->make_assignment(
        scripted(std::string("started(0)\nsend('lease_request', index=0)\nreceive()\n") + ending));
    assignment.gpu_count = 1;
    slot_->run(assignment);
    ASSERT_EQ(slot_->log().ended_leases().size(), before + 1) << ending;
    EXPECT_TRUE(slot_->log().ended_leases().back().second) << ending;
  }
}

TEST_F(ScriptedLease, TimeThatWaitsForALeaseIsNoneOfTheDeadline) {
  auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  slot->log().on_ask = [](const LeaseAsk&) {};
  Assignment assignment = slot->make_assignment(
      scripted("started(0)\nsend('lease_request', index=0)\nreceive()\nfailed(0, 'runtime', 'enough')"));
  assignment.timeout = std::chrono::milliseconds(200);
  assignment.gpu_count = 1;
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_ask(1));
  // Longer than the deadline: until another executor's timer of twice its length has run.
  Assignment clock = slot_->make_assignment(scripted("started(0)\nimport time; time.sleep(60)"));
  clock.timeout = std::chrono::milliseconds(400);
  EXPECT_EQ(slot_->run(clock).ending, Ending::kTimedOut);
  EXPECT_EQ(slot->log().outcome_count(), 0u);
  slot->grant_lease(slot->log().asks().back().id, {3});
  ASSERT_TRUE(slot->log().wait_for_outcome(1));
  EXPECT_EQ(slot->log().last_report().error_message, "enough");
  EXPECT_GE(slot->log().last_report().lease_wait_ms, 400);
}

TEST_F(ScriptedLease, LongestWaitForALeaseIsTheEnvironmentsFailure) {
  auto slot = std::make_unique<SlotHarness>([&](ExecutorConfig& config) {
    config.executor_path = *executable_;
    config.standby = 0;
    config.devices = {3};
    config.lease_wait_max = std::chrono::milliseconds(100);
  });
  ASSERT_TRUE(slot->start_and_wait());
  slot->log().on_ask = [](const LeaseAsk&) {};
  Assignment assignment = slot->make_assignment(scripted("started(0)\nsend('lease_request', index=0)\nreceive()"));
  assignment.gpu_count = 1;
  const RunReport report = slot->run(assignment);
  EXPECT_EQ(report.error_kind, "unavailable");
  EXPECT_NE(report.error_message.find("waited 0.1 s for a GPU lease"), std::string::npos) << report.error_message;
  EXPECT_NE(report.error_message.find("GET /gpus shows who has the GPU"), std::string::npos) << report.error_message;
  EXPECT_EQ(slot->log().ended_leases().size(), 1u);
}

const char* const kWaitsForLease = "started(0)\nsend('lease_request', index=0)\nreceive()";

TEST_F(ScriptedLease, DenialEndsTheProgramWithItsReason) {
  auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  const auto grant = std::exchange(slot->log().on_ask, [&slot](const LeaseAsk& ask) {
    slot->executor().deny_lease(ask.id, "GPU 3 is quarantined");
  });
  Assignment assignment = slot->make_assignment(scripted(kWaitsForLease));
  assignment.gpu_count = 1;
  const RunReport report = slot->run(assignment);
  EXPECT_EQ(report.ending, Ending::kFailed);
  EXPECT_EQ(report.error_kind, "unavailable");
  EXPECT_EQ(report.error_message, "GPU 3 is quarantined");
  EXPECT_EQ(members_of(report)["error"]["instruction_index"], 0);
  EXPECT_EQ(slot->log().asks().size(), 1u) << "it had no context whose end would need a lease";
  EXPECT_EQ(slot->log().ended_leases().size(), 1u);
  slot->log().on_ask = grant;
  assignment = slot->make_assignment(scripted(std::string(kWaitsForLease) + "\nfailed(0, 'runtime', 'enough')"));
  assignment.gpu_count = 1;
  EXPECT_EQ(slot->run(assignment).error_message, "enough") << "the slot goes on";
  EXPECT_TRUE(slot->log().lost().empty());
}

TEST_F(ScriptedLease, WhatEndsTheProgramBeforeItsDenialComesIsWhatCounts) {
  auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  Assignment assignment = slot->make_assignment(scripted(kWaitsForLease));
  assignment.gpu_count = 1;
  slot->log().on_ask = [&slot, request = assignment.request_id](const LeaseAsk& ask) {
    slot->executor().cancel(request);
    slot->executor().deny_lease(ask.id, "GPU 3 is quarantined");
  };
  EXPECT_EQ(slot->run(assignment).ending, Ending::kCancelled);
  EXPECT_EQ(slot->log().outcome_count(), 1u);
  EXPECT_EQ(slot->log().ended_leases().size(), 1u);
  EXPECT_TRUE(slot->log().lost().empty());
}

TEST_F(ScriptedLease, RuntimeThatGivesBackWhatItWasNotGrantedIsStopped) {
  Assignment assignment = slot_->make_assignment(
      scripted("started(0)\nwhile True: send('lease_request', index=0); send('lease_release', index=0)"));
  assignment.gpu_count = 1;
  const RunReport report = slot_->run(assignment);
  EXPECT_EQ(report.error_kind, "engine");
  EXPECT_NE(report.error_message.find("does not have"), std::string::npos) << report.error_message;
}

}  // namespace
}  // namespace kcoral::executor
