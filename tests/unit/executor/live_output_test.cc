// What a program prints, as the server can read it while it runs.
#include <gmock/gmock.h>

#include "tests/unit/executor/device_harness.h"

namespace kcoral::executor {
namespace {

using testing::HasSubstr;

class LiveOutput : public DeviceTest {
 protected:
  static std::string print(const std::string& text, int fd = 1) {
    return "os.write(" + std::to_string(fd) + ", b'" + text + "')\n";
  }
  std::string wait_for(const std::string& sign) const { return "while not " + is_given(sign) + ": pass\n"; }
  static bool wait_for_text(const UniqueFd& memory, const std::string& text) {
    return wait_until([&] { return text_in(memory) == text; });
  }
};

TEST_F(LiveOutput, GrowsWhileTheProgramRunsAndEndsAsTheOutcomeSays) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  const std::string end = std::string(kAnswer) + "completed()";
  slot->begin(with_gpu(*slot, print("one") + wait_for("go") + print("two") + wait_for("end") + print("three") + end));
  ASSERT_TRUE(slot->log().wait_for_output(1));
  const auto [stream, memory] = slot->log().outputs()[0];
  EXPECT_EQ(stream, OutputStream::kStdout);
  EXPECT_TRUE(wait_for_text(*memory, "one"));
  give("go");
  EXPECT_TRUE(wait_for_text(*memory, "onetwo"));
  EXPECT_EQ(slot->log().outcome_count(), 0u);
  EXPECT_LT(::write(memory->get(), "x", 1), 0) << "only the executor writes it";
  give("end");
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_EQ(members_of(slot->log().last_report())["stdout"], "onetwothree");
  EXPECT_EQ(text_in(*memory), "onetwothree");
  EXPECT_EQ(slot->log().outputs().size(), 1u) << "nothing was printed on the other stream";
}

TEST_F(LiveOutput, OfEachStreamIsKeptUpToItsLimit) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  Assignment assignment = with_gpu(
      *slot, print("0123456789abc") + print("error", 2) + wait_for("end") + print("more") + kAnswer + "completed()");
  assignment.output_limit_bytes = 10;
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_output(2));
  give("end");
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  for (const auto& [stream, memory] : slot->log().outputs()) {
    EXPECT_EQ(text_in(*memory), stream == OutputStream::kStdout ? "0123456789" : "error");
  }
  auto members = members_of(slot->log().last_report());
  EXPECT_EQ(members["stdout"], "0123456789");
  EXPECT_EQ(members["stdout_truncated"], true);
  EXPECT_EQ(members["stderr"], "error");
}

TEST_F(LiveOutput, OfWhichNothingIsKeptIsNotShown) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  Assignment assignment = with_gpu(*slot, print("text") + kAnswer + "completed()");
  assignment.output_limit_bytes = 0;
  auto members = members_of(slot->run(assignment));
  EXPECT_EQ(members["stdout"], "");
  EXPECT_EQ(members["stdout_truncated"], true);
  EXPECT_TRUE(slot->log().outputs().empty());
}

TEST_F(LiveOutput, OfEachProgramOfAProcessIsItsOwn) {
  const auto slot = make_slot("", /*standby=*/0, [](ExecutorConfig& config) { config.runs_per_runtime = 0; });
  ASSERT_TRUE(slot->start_and_wait());
  const std::string rest = std::string(kAnswer) + "completed()\nreceive()\n" + print("between") + "run_program()";
  for (const char* text : {"first", "second"}) {
    const size_t shown = slot->log().outputs().size();
    const std::string sign = std::string("end") + text;
    slot->begin(with_gpu(*slot, print(text) + wait_for(sign) + rest));
    ASSERT_TRUE(slot->log().wait_for_output(shown + 1));
    give(sign);
    ASSERT_TRUE(slot->log().wait_for_idle(shown + 2));
    EXPECT_EQ(members_of(slot->log().last_report())["stdout"], text);
  }
  EXPECT_EQ(text_in(*slot->log().outputs()[0].second), "first");
  EXPECT_EQ(text_in(*slot->log().outputs()[1].second), "second");
}

TEST_F(LiveOutput, ThatCannotBeKeptOrShownLosesTheRunWithItsReason) {
  const std::pair<size_t, const char*> shortages[] = {{0, "memfd_create: Too many open files"},
                                                      {1, "open /proc/self/fd/"}};
  for (const auto& [room, reason] : shortages) {
    const std::string sign = "print" + std::to_string(room);
    const auto slot = make_slot();
    ASSERT_TRUE(slot->start_and_wait());
    slot->begin(with_gpu(*slot, "started(0)\n" + wait_for(sign) + print("text") + "signal.pause()"));
    ASSERT_TRUE(slot->log().wait_for_record("instruction_started"));
    leave_descriptors(slot->executor_pid(), room);
    give(sign);
    ASSERT_TRUE(slot->log().wait_for_lost(1)) << room;
    EXPECT_THAT(slot->log().lost()[0].reason, HasSubstr("output could not be kept: "));
    EXPECT_THAT(slot->log().lost()[0].reason, HasSubstr(reason));
    EXPECT_FALSE(slot->log().lost()[0].permanent);
    EXPECT_EQ(slot->log().outcome_count(), 0u);
    ASSERT_TRUE(slot->log().wait_for_idle(2)) << "the executor is replaced";
  }
}

}  // namespace
}  // namespace kcoral::executor
