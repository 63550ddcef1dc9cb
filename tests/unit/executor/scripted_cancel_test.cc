// Cancelling a program in every phase of its run: it ends as cancelled, nothing of it is left, and the slot goes on.
#include <gmock/gmock.h>

#include "tests/unit/executor/device_harness.h"

namespace kcoral::executor {
namespace {

using testing::HasSubstr;
using testing::Not;

class CancelTest : public DeviceTest {
 protected:
  /// Waits until the run has ended as cancelled and the slot is idle; then it takes another program.
  static void expect_cancelled(SlotHarness& slot, const std::string& place) {
    expect_cancelled_as(slot, "cancelled " + place);
  }
  static void expect_cancelled_as(SlotHarness& slot, const testing::Matcher<const std::string&>& message) {
    ASSERT_TRUE(slot.log().wait_for_outcome(1));
    EXPECT_EQ(slot.log().last_report().ending, Ending::kCancelled);
    EXPECT_THAT(slot.log().last_report().error_message, message);
    EXPECT_EQ(slot.log().last_report().outcome_members, nullptr);
    expect_usable(slot);
  }
  /// After its first run.
  static void expect_usable(SlotHarness& slot) {
    ASSERT_TRUE(slot.log().wait_for_idle(2));
    EXPECT_EQ(slot.log().ended_leases().size(), slot.log().asks().size()) << "each lease has ended";
    EXPECT_EQ(slot.run(with_gpu(slot, std::string(kAnswer) + "completed()")).ending, Ending::kCompleted);
    EXPECT_EQ(slot.log().outcome_count(), 2u);
    EXPECT_EQ(descendants(slot.executor_pid()).size(), kSlotProcesses);
    EXPECT_TRUE(slot.log().lost().empty());
  }
};

TEST_F(CancelTest, WhileItsBlobsArrive) {
  for (const char* script : {"signal.pause()", "started(0); signal.pause()"}) {
    const auto slot = make_slot();
    ASSERT_TRUE(slot->start_and_wait());
    Assignment assignment = with_gpu(*slot, script);
    for (int i = 0; i < 1000; ++i) {
      const std::string text = std::to_string(i);
      assignment.blobs.emplace_back(Sha256::of(text), *SealedMemory::copy_of(text));
    }
    slot->begin_and_cancel(assignment);
    // A runtime that begins while they come may have said so by then.
    expect_cancelled_as(*slot, testing::MatchesRegex("cancelled (before|in) instructions.0. .upload .s..*"));
  }
}

TEST_F(CancelTest, WhileItsRuntimeIsStarted) {
  const std::pair<const char*, std::string> phases[] = {
      {"it is asked for",
       "def prepare_hook(frame, fds):\n"
       "  while not {}: pass\n"
       "  return True\n"},
      {"it is asked for, in vain",
       "def prepare_hook(frame, fds):\n"
       "  while not {}: pass\n"
       "  for fd in fds: os.close(fd)\n"
       "  send('prepare_failed', id=frame['id'], message='no memory')\n"
       "  globals()['prepare_hook'] = None\n"},
      {"it is there, and not ready",
       "prepared, real_run = 0, run_program\n"
       "def prepare_hook(frame, fds):\n"
       "  globals()['prepared'] = frame['id']\n"
       "  return True\n"
       "def run_program(): real_run() if prepared > 1 else signal.pause()\n"},
  };
  int number = 0;
  for (auto [phase, script] : phases) {
    const std::string sign = "go" + std::to_string(++number);
    if (const size_t place = script.find("{}"); place != std::string::npos) script.replace(place, 2, is_given(sign));
    const auto slot = make_slot(script);
    ASSERT_TRUE(slot->start_and_wait()) << phase;
    slot->begin_and_cancel(with_gpu(*slot, "started(0); signal.pause()"));
    give(sign);
    expect_cancelled(*slot, "before instructions[0] (upload \"s\")");
  }
}

TEST_F(CancelTest, WhileItWaitsForItsDevice) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  slot->log().on_ask = [](const LeaseAsk&) {};
  const Assignment assignment = with_gpu(*slot, std::string(kTakeLease) + "signal.pause()");
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_ask(1));
  slot->cancel(assignment.request_id);
  expect_cancelled(*slot, "in instructions[0] (upload \"s\")");
  EXPECT_THAT(slot->log().records_text(), Not(HasSubstr("lease_granted")));
}

TEST_F(CancelTest, WhileItRunsOnTheProcessorWhateverItDoes) {
  const char* scripts[] = {"while True: pass", "os.kill(os.getpid(), 19)",
                           "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()",
                           "for i in range(20):\n  if os.fork() == 0: os.setsid()\nwhile True: pass",
                           "while True: os.write(1, b'x' * 65536)"};
  for (const char* script : scripts) {
    const auto slot = make_slot();
    ASSERT_TRUE(slot->start_and_wait());
    const Assignment assignment = with_gpu(*slot, std::string("started(0)\n") + script);
    slot->begin(assignment);
    ASSERT_TRUE(slot->log().wait_for_record("instruction_started")) << script;
    slot->cancel(assignment.request_id);
    expect_cancelled(*slot, "in instructions[0] (upload \"s\")");
    EXPECT_THAT(slot->log().records_text(), HasSubstr(R"("event":"process_exited","signal":9)")) << script;
  }
}

TEST_F(CancelTest, WhileItHasItsDevice) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  const Assignment assignment = with_gpu(*slot, std::string(kTakeLease) + "signal.pause()");
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_record("lease_granted"));
  slot->cancel(assignment.request_id);
  ASSERT_TRUE(slot->log().wait_for_ended_lease(1));
  EXPECT_FALSE(is_alive(slot->log().last_pid())) << "its processes end before the device passes on";
  EXPECT_TRUE(slot->log().ended_leases()[0].second);
  expect_cancelled(*slot, "in instructions[0] (upload \"s\")");
  EXPECT_THAT(slot->log().records_text(), HasSubstr("lease_released"));
}

TEST_F(CancelTest, WhileItHasGivenItsDeviceBackOrWantsItAgain) {
  for (const bool wants_it_again : {false, true}) {
    const auto slot = make_slot();
    ASSERT_TRUE(slot->start_and_wait());
    const std::string again = wants_it_again ? "send('lease_request', index=0)\nreceive()\n" : "";
    const Assignment assignment =
        with_gpu(*slot, std::string(kTakeLease) + "send('lease_release', index=0)\n" + again + "signal.pause()");
    slot->log().on_ask = [&slot](const LeaseAsk& ask) {
      if (ask.id == 1) slot->executor().grant_lease(ask.id, {3});
    };
    slot->begin(assignment);
    ASSERT_TRUE(slot->log().wait_for_ended_lease(1));
    ASSERT_TRUE(slot->log().wait_for_ask(wants_it_again ? 2 : 1));
    slot->cancel(assignment.request_id);
    expect_cancelled(*slot, "in instructions[0] (upload \"s\")");
  }
}

TEST_F(CancelTest, OnceItHasAnsweredChangesNothing) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  const Assignment assignment = with_gpu(*slot, std::string(kAnswer) + "completed(); signal.pause()");
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_running(1));
  // Its process is ended after the answer: that is on its way, and not taken before the cancel is sent.
  slot->cancel_once(assignment.request_id, [pid = slot->log().last_pid()] { return !is_alive(pid); });
  ASSERT_TRUE(slot->log().wait_for_outcome(1));
  EXPECT_EQ(slot->log().last_report().ending, Ending::kCompleted);
  expect_usable(*slot);
}

TEST_F(CancelTest, WhileItIsEndedOtherwiseChangesNothing) {
  // The first process of a namespace does not end before its parent has reaped the others.
  const auto slot = make_slot("may_reap = lambda: " + is_given("end"));
  ASSERT_TRUE(slot->start_and_wait());
  Assignment assignment = with_gpu(*slot, "started(0)\nsignal.pause()");
  assignment.timeout = std::chrono::milliseconds(100);
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_record("deadline_passed"));
  slot->cancel(assignment.request_id);
  slot->settle();
  give("end");
  ASSERT_TRUE(slot->log().wait_for_outcome(1));
  EXPECT_EQ(slot->log().last_report().ending, Ending::kTimedOut);
  expect_usable(*slot);
}

}  // namespace
}  // namespace kcoral::executor
