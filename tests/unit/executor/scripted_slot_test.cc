// A slot in which something else than the program fails: zygotes, executors and runtimes that stand by, an environment
// that runs short, and processes that cannot be ended.
#include <fmt/format.h>

#include <csignal>

#include "tests/unit/executor/scripted_harness.h"

namespace kcoral::executor {
namespace {

using ScriptedSlot = Scripted;  // a suite of its own

TEST_F(ScriptedSlot, KilledZygoteLosesTheRunAndIsReplaced) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  slot->begin(slot->make_assignment(scripted("started(0)\nimport time; time.sleep(60)")));
  ASSERT_TRUE(slot->log().wait_for_record("instruction_started"));
  const int runtime = slot->log().last_pid();
  std::vector<pid_t> processes = descendants(slot->executor_pid());
  ASSERT_GE(processes.size(), 4U);
  ::kill(processes[3], SIGKILL);  // the zygote: below bubblewrap, its init, and kcoral-init outside
  ASSERT_TRUE(slot->log().wait_for_lost(1));
  EXPECT_FALSE(slot->log().lost()[0].permanent);
  EXPECT_NE(slot->log().lost()[0].reason.find("the zygote ended"), std::string::npos) << slot->log().lost()[0].reason;
  EXPECT_TRUE(wait_until_gone({runtime}));
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_EQ(slot->run(scripted(std::string(kAnswer) + "completed()")).ending, Ending::kCompleted);
}

TEST_F(ScriptedSlot, KilledExecutorLosesTheRunAndEverythingDies) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  slot->begin(slot->make_assignment(scripted("started(0)\nimport time; time.sleep(60)")));
  ASSERT_TRUE(slot->log().wait_for_record("instruction_started"));
  const std::vector<pid_t> processes = descendants(slot->executor_pid());
  ::kill(slot->executor_pid(), SIGKILL);
  ASSERT_TRUE(slot->log().wait_for_lost(1));
  EXPECT_NE(slot->log().lost()[0].reason.find("signal 9 (SIGKILL)"), std::string::npos);
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_TRUE(wait_until_gone(processes));
}

TEST_F(ScriptedSlot, ZygoteThatFailsIsPermanentAndSaysWhy) {
  const std::pair<const char*, const char*> cases[] = {
      {"send('zygote_failed', message='no module named torch'); os._exit(1)", "no module named torch"},
      {"os.write(2, b'something broke\\n'); os._exit(3)", "something broke"},
  };
  for (const auto& [script, message] : cases) {
    const auto slot = make_slot(script);
    slot->start();
    ASSERT_TRUE(slot->log().wait_for_lost(1)) << script;
    EXPECT_TRUE(slot->log().lost()[0].permanent) << script;
    EXPECT_NE(slot->log().lost()[0].reason.find(message), std::string::npos) << slot->log().lost()[0].reason;
    EXPECT_EQ(slot->executor_pid(), 0);
  }
}

TEST_F(ScriptedSlot, ZygoteThatMayComeNextTimeIsTriedAgain) {
  const char* scripts[] = {
      "os.kill(os.getppid(), 9) if os.getppid() else ctypes.string_at(0)",
      "send('zygote_failed', message='fork: [Errno 11] Resource temporarily unavailable'); os._exit(1)",
      "os.write(2, b'bwrap: Cannot allocate memory\\n'); os._exit(1)",
  };
  for (const char* script : scripts) {
    const auto slot = make_slot(script);
    slot->start();
    ASSERT_TRUE(slot->log().wait_for_lost(2)) << script;
    EXPECT_FALSE(slot->log().lost()[0].permanent) << slot->log().lost()[0].reason;
    EXPECT_FALSE(slot->log().lost()[1].permanent) << slot->log().lost()[1].reason;
  }
}

TEST_F(ScriptedSlot, ShortageAtARunLosesItButNotTheSlot) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  leave_descriptors(slot->executor_pid(), 1);  // for the program; none for its pipes
  slot->begin(slot->make_assignment(scripted(std::string(kAnswer) + "completed()")));
  ASSERT_TRUE(slot->log().wait_for_lost(1));
  EXPECT_FALSE(slot->log().lost()[0].permanent);
  EXPECT_NE(slot->log().lost()[0].reason.find("Too many open files"), std::string::npos)
      << slot->log().lost()[0].reason;
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_EQ(slot->run(scripted(std::string(kAnswer) + "completed()")).ending, Ending::kCompleted);
}

TEST_F(ScriptedSlot, OutcomeThatCannotBeMadeLosesTheRunWithItsReason) {
  const auto slot = make_slot();
  ASSERT_TRUE(slot->start_and_wait());
  const Assignment assignment = slot->make_assignment(scripted("started(0)\nimport time; time.sleep(60)"));
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_record("instruction_started"));
  leave_descriptors(slot->executor_pid(), 0);
  slot->cancel(assignment.request_id);
  ASSERT_TRUE(slot->log().wait_for_lost(1));
  EXPECT_EQ(slot->log().outcome_count(), 0U);
  EXPECT_FALSE(slot->log().lost()[0].permanent);
  EXPECT_NE(slot->log().lost()[0].reason.find("outcome could not be passed on: memfd_create: Too many open files"),
            std::string::npos)
      << slot->log().lost()[0].reason;
  ASSERT_TRUE(slot->log().wait_for_idle(2));
}

TEST_F(ScriptedSlot, SandboxThatCannotBeSetUpIsTheEnvironments) {
  for (const size_t standby : {0, 1}) {
    const auto slot = make_slot("def enter(self): raise OSError('no tmpfs today')\nSandbox.enter = enter", standby);
    ASSERT_TRUE(slot->start_and_wait());
    const RunReport report = slot->run(scripted("os._exit(0)"));
    EXPECT_EQ(report.error_kind, "unavailable");
    EXPECT_EQ(report.error_message, "the program's sandbox could not be set up: no tmpfs today");
  }
}

TEST_F(ScriptedSlot, ProgramsTakeRuntimesThatWerePreparedAhead) {
  const auto slot = make_slot(
      "def prepare_hook(frame, fds):\n"
      "  if frame['id'] == 1: return True\n"
      "  for fd in fds: os.close(fd)\n"
      "  send('prepare_failed', id=frame['id'], message='no more than one')\n",
      /*standby=*/1);
  ASSERT_TRUE(slot->start_and_wait());
  EXPECT_EQ(slot->run(scripted(std::string(kAnswer) + "completed()")).ending, Ending::kCompleted)
      << "in the first, which was prepared before there was a program";
  EXPECT_NE(slot->run(scripted("os._exit(0)")).error_message.find("no more than one"), std::string::npos)
      << "in the third: the second was prepared ahead, and failed";
}

TEST_F(ScriptedSlot, RuntimeThatFailsWhileItStandsByIsNoProgramsAffair) {
  const char* failures[] = {"send('ready'); os._exit(0)",
                            "os._exit(0)",
                            "send('setup_failed', message='not this one')",
                            "send('ready'); send('started', index=0); signal.pause()",
                            "send_raw(b'x'); signal.pause()",
                            "send('ready'); channel.close(); signal.pause()"};
  for (const char* failure : failures) {
    // The second runtime fails, and the first program waits until nothing is left of that.
    const auto slot =
        make_slot(fmt::format("prepared, real_reap, real_run = 0, reap, run_program\n"
                              "for end, number in zip(os.pipe(), (100, 101)): os.dup2(end, number)\n"
                              "def prepare_hook(frame, fds):\n"
                              "  global prepared\n"
                              "  prepared = frame['id']\n"
                              "  return True\n"
                              "def run_program():\n"
                              "  if prepared != 2: return real_run()\n"
                              "  {}\n"
                              "def reap(children):\n"
                              "  before = (2, 'runtime') in children.values()\n"
                              "  real_reap(children)\n"
                              "  if before and (2, 'runtime') not in children.values(): os.write(101, b'x')\n",
                              failure),
                  /*standby=*/1);
    ASSERT_TRUE(slot->start_and_wait());
    const std::string program = std::string(kAnswer) + "completed()";
    EXPECT_EQ(slot->run(scripted("os.read(100, 1)\n" + program)).ending, Ending::kCompleted) << failure;
    EXPECT_EQ(slot->run(scripted(program)).ending, Ending::kCompleted) << failure;
    EXPECT_EQ(slot->run(scripted(program)).ending, Ending::kCompleted) << failure;
  }
}

TEST_F(ScriptedSlot, MalformedZygoteFramesLoseTheSlot) {
  const char* scripts[] = {"send_raw(b'x')", "send('prepared')", "send('what', id=1)",
                           "send('exited', id=1, process='x', code=1)", "send('zygote_ready', versions=[])"};
  for (const char* script : scripts) {
    const auto slot = make_slot(script);
    slot->start();
    ASSERT_TRUE(slot->log().wait_for_lost(1)) << script;
    EXPECT_FALSE(slot->log().lost()[0].permanent) << script;
  }
}

TEST_F(ScriptedSlot, PrepareThatFailsIsAnEngineError) {
  const auto slot = make_slot(
      "def prepare_hook(frame, fds):\n"
      "  for fd in fds: os.close(fd)\n"
      "  send('prepare_failed', id=frame['id'], message='no memory')\n"
      "  globals()['prepare_hook'] = None\n");
  ASSERT_TRUE(slot->start_and_wait());
  const RunReport report = slot->run(scripted("os._exit(0)"));
  EXPECT_EQ(report.error_kind, "engine");
  EXPECT_NE(report.error_message.find("no memory"), std::string::npos);
  EXPECT_EQ(slot->run(scripted(std::string(kAnswer) + "completed()")).ending, Ending::kCompleted);
}

TEST_F(ScriptedSlot, ProcessesThatCannotBeEndedQuarantineTheSlot) {
  // The first process of a namespace does not end before its parent has reaped the others.
  const TemporaryDirectory signs("/var/tmp");  // a slot has a /tmp of its own
  std::filesystem::permissions(signs.path(), std::filesystem::perms(0755));
  const std::string sign = signs.path() / "end";
  const auto slot = std::make_unique<SlotHarness>([&](ExecutorConfig& config) {
    config.executor_path = *executable_;
    config.standby = 0;
    config.read_only_paths.push_back(signs.path());
    config.environment["KCORAL_FAKE_ZYGOTE"] = "may_reap = lambda: os.path.exists('" + sign + "')";
  });
  ASSERT_TRUE(slot->start_and_wait());
  Assignment assignment = slot->make_assignment(scripted("started(0)\nimport time; time.sleep(60)"));
  assignment.timeout = std::chrono::milliseconds(100);
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_outcome(1));
  EXPECT_EQ(slot->log().last_report().ending, Ending::kTimedOut);
  EXPECT_NE(slot->log().last_report().error_message.find("the slot is quarantined"), std::string::npos);
  ASSERT_TRUE(slot->log().wait_for_quarantine(1));
  EXPECT_NE(slot->log().last_quarantine().find(assignment.request_id.str()), std::string::npos);
  EXPECT_EQ(slot->log().idle_count(), 1u);
  EXPECT_EQ(slot->log().outcome_count(), 1u);

  std::ofstream(sign) << "now";
  ASSERT_TRUE(slot->log().wait_for_idle(2));
  EXPECT_EQ(slot->run(scripted(std::string(kAnswer) + "completed()")).ending, Ending::kCompleted);
  EXPECT_TRUE(slot->log().lost().empty());
}

TEST_F(ScriptedSlot, AZygoteThatDoesNotTellOfAnEndIsReplaced) {
  const auto slot = make_slot("report_ends = False");
  ASSERT_TRUE(slot->start_and_wait());
  Assignment assignment = slot->make_assignment(scripted("started(0)\nimport time; time.sleep(60)"));
  assignment.timeout = std::chrono::milliseconds(100);
  slot->begin(assignment);
  ASSERT_TRUE(slot->log().wait_for_outcome(1));
  EXPECT_NE(slot->log().last_report().error_message.find("the slot is replaced"), std::string::npos);
  ASSERT_TRUE(slot->log().wait_for_lost(1));
  EXPECT_FALSE(slot->log().lost()[0].permanent);
  ASSERT_TRUE(slot->log().wait_for_idle(2));
}

}  // namespace
}  // namespace kcoral::executor
