// Runs with a zygote and runtime that do what each test says (fake_zygote.py), in the real sandbox: everything that a
// program, which shares its process with the runtime, can do to the executor.
#include <fmt/format.h>

#include <csignal>

#include "tests/unit/executor/slot_harness.h"

namespace kcoral::executor {
namespace {

using Ending = schema::Outcome::Ending;
using nlohmann::json;
using testing::Test;

std::string fake_zygote() {
  std::ifstream file(KCORAL_TEST_SOURCES "/fake_zygote.py");
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

/// Two instructions: the upload of `script`, which the fake runtime executes, and the return of it.
std::string scripted(const std::string& script) {
  return json{{"instructions",
               {{{"op", "upload"}, {"kind", "module"}, {"id", "s"}, {"source", script}},
                {{"op", "get_function"}, {"id", "f"}, {"module", {{"$ref", "s"}}}, {"name", "main"}},
                {{"op", "run"}, {"id", "x"}, {"fn", {{"$ref", "f"}}}},
                {{"op", "return"}, {"key", "k"}, {"value", {{"$ref", "x"}}}}}}}
      .dump();
}

constexpr const char* kAnswer =
    "for i in range(3): started(i)\n"
    "started(3); returned(3, '{\"value\":{\"type\":\"null\"},\"parts\":[]}')\n";

class Scripted : public Test {
 protected:
  static void SetUpTestSuite() {
    installation_ = new TemporaryDirectory;
    executable_ = new std::string(install_with_python(installation_->path(), {{"zygote.py", fake_zygote()}}));
    slot_ = make_slot().release();
    ASSERT_TRUE(slot_->start_and_wait());
  }
  static void TearDownTestSuite() {
    delete slot_;
    delete executable_;
    delete installation_;
  }
  /// Without runtimes that stand by, each prepare is that of the program at hand.
  static std::unique_ptr<SlotHarness> make_slot(const std::string& zygote_script = "", size_t standby = 0) {
    return std::make_unique<SlotHarness>([&](ExecutorConfig& config) {
      config.executor_path = *executable_;
      config.standby = standby;
      if (standby == 0) config.devices = {3};  // the fake runtime makes no contexts ahead
      if (!zygote_script.empty()) config.environment["KCORAL_FAKE_ZYGOTE"] = zygote_script;
    });
  }
  /// The error of a run that failed.
  static json error_of(const std::string& script) {
    const RunReport report = slot_->run(scripted(script));
    EXPECT_EQ(report.ending, Ending::kFailed) << report.error_message;
    return report.ending == Ending::kFailed ? members_of(report)["error"] : json();
  }
  static void expect_error(const std::string& script, const std::string& kind, const std::string& message,
                           int index = 0) {
    json error = error_of(script);
    ASSERT_FALSE(error.is_null()) << script;
    EXPECT_EQ(error["kind"], kind) << script << error;
    EXPECT_NE(error["message"].get<std::string>().find(message), std::string::npos) << script << error;
    EXPECT_EQ(error["instruction_index"], index) << script << error;
  }

  static TemporaryDirectory* installation_;
  static std::string* executable_;
  static SlotHarness* slot_;
};

TemporaryDirectory* Scripted::installation_ = nullptr;
std::string* Scripted::executable_ = nullptr;
SlotHarness* Scripted::slot_ = nullptr;

TEST_F(Scripted, RunGoesAllTheWay) {
  const RunReport report = slot_->run(scripted(std::string(kAnswer) + "completed()\n"));
  EXPECT_EQ(report.ending, Ending::kCompleted);
  EXPECT_EQ(members_of(report)["results"]["k"]["type"], "null");
  EXPECT_EQ(report.results_summary, R"([{"key":"k","type":"null","size":15}])");
  EXPECT_GT(slot_->log().last_pid(), 1);
  EXPECT_GT(report.elapsed_ms, 0);
  EXPECT_EQ(report.lease_wait_ms, 0);
}

TEST_F(Scripted, AnswerCountsWhenTheProcessEndsAtOnce) {
  const RunReport report = slot_->run(scripted(std::string(kAnswer) + "completed(); os._exit(9)\n"));
  EXPECT_EQ(report.ending, Ending::kCompleted);
}

TEST_F(Scripted, WithoutDevicesThereIsNoLease) {
  expect_error("started(0); send('lease_request', index=0)\nimport time; time.sleep(60)", "engine",
               "there is nothing to lease");
}

TEST_F(Scripted, LeaseIsGranted) {
  const size_t before = slot_->log().asks().size();
  Assignment assignment =
      slot_->make_assignment(scripted("started(0)\n"
                                      "send('lease_request', index=0)\n"
                                      "frame, fds = receive()\n"
                                      "assert frame == {'type': 'lease_granted', 'devices': [0]}, frame\n"
                                      "send('lease_release', index=0)\n"
                                      "started(1); failed(1, 'runtime', 'enough')\n"));
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

TEST_F(Scripted, LeaseOfAProcessThatEndsIsGivenBackOnceAfterItsEnd) {
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

TEST_F(Scripted, TimeThatWaitsForALeaseIsNoneOfTheDeadline) {
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

TEST_F(Scripted, LongestWaitForALeaseIsTheEnvironmentsFailure) {
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
  EXPECT_EQ(slot->log().ended_leases().size(), 1u);
}

TEST_F(Scripted, ProcessThatEndsIsItsOwnFailureAndKeepsReturns) {
  expect_error("started(0); os._exit(3)", "runtime", "the program ended its process with exit code 3");
  expect_error("started(0); os.kill(os.getpid(), 11)", "runtime", "was killed by signal 11 (SIGSEGV)");
  expect_error("started(0); os.kill(os.getpid(), 9)", "runtime", "was killed by signal 9 (SIGKILL)");
  expect_error("started(0); os.kill(os.getpid(), 24)", "runtime", "it used all of its CPU time");
  expect_error("for i in range(2): started(i)\nos._exit(0)", "runtime", "exit code 0", 1);
  json error = error_of(std::string(kAnswer) + "os.write(1, b'last words'); os._exit(4)");
  EXPECT_EQ(error["instruction_index"], 3);
  json members = members_of(slot_->log().last_report());
  EXPECT_EQ(members["results"]["k"]["type"], "null");
  EXPECT_EQ(members["stdout"], "last words");
}

TEST_F(Scripted, RuntimeThatEndsBeforeItsFirstInstructionIsOurFailure) {
  expect_error("os._exit(5)", "engine", "before the first instruction (exit code 5)");
}

TEST_F(Scripted, FramesThatDoNotFitEndTheProgramAsEngineErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"send('ready')", "out of order"},
      {"started(1)", "out of order"},
      {"started(0); started(0)", "out of order"},
      {"send('failed', index=0)", "does not run"},
      {"started(0); send('finished', index=0)", "unknown type"},
      {"completed()", "out of order"},
      {"send('started')", "\"index\" is missing"},
      {"send('started', index='0')", "must be an integer"},
      {"send('started', index=-1)", "must be an integer"},
      {"started(0); send('lease_release', index=0)", "out of order"},
      {"started(0); returned(0, '{\"value\":{\"type\":\"null\"},\"parts\":[]}')", "out of order"},
      {"started(0); send('nonsense', index=0)", "unknown type"},
      {"started(0); failed(0, 'fatal', 'x')", "unknown kind"},
      {"started(0); send('failed', index=0)", "0 descriptors"},
      {"started(0); send('failed', [memfd('{}', sealed=False)], index=0)", "not sealed"},
      {"started(0); send('failed', [memfd('[' * 100000)], index=0)", "malformed error document"},
      {"send_raw(b'no json')", "no JSON"},
      {"send_raw(b'[]')", "JSON object"},
      {"send_raw(b'{}')", "\"type\""},
      {"send_raw(b'[' * 60000)", "no JSON"},
      {"send_raw(b'{\"type\":\"' + b'x' * 70000 + b'\"}')", "no frame"},
      {"send('started', [0] * 65, index=0)", "lost descriptors"},
  };
  for (const auto& [script, message] : cases)
    expect_error(std::string(script) + "\nimport time; time.sleep(60)", "engine", message);
}

TEST_F(Scripted, MalformedValuesEndTheProgramAsEngineErrors) {
  const std::string begin = "for i in range(3): started(i)\nstarted(3)\n";
  const std::pair<const char*, const char*> cases[] = {
      {"completed()", "without a value"},
      {"returned(3, 'x')", "malformed value document"},
      {"returned(3, '{}')", "without \"value\""},
      {"returned(3, '{\"value\":{\"type\":\"null\"},\"more\":1}')", "no \"more\""},
      {"returned(3, '{\"value\":{\"type\":\"nil\"},\"parts\":[]}')", "malformed value"},
      {"returned(3, '{\"value\":{\"type\":\"bytes\",\"part\":0},\"parts\":[[0,4]]}')", "no data"},
      {"returned(3, '{\"value\":{\"type\":\"bytes\",\"part\":0},\"parts\":[[0,4]]}', b'abc')", "not inside"},
      {"returned(3, '{\"value\":{\"type\":\"bytes\",\"part\":0},\"parts\":[[0,-4]]}', b'abc')", "malformed"},
      {"returned(3, '{\"value\":{\"type\":\"bytes\",\"part\":0},\"parts\":[[0]]}', b'abc')", "malformed"},
      {"send('returned', [memfd('{}')] * 3, index=3)", "3 descriptors"},
      {"send('returned', [0], index=3)", "sealed memfd"},
      {"returned(3, '{\"value\":{\"type\":\"null\"},\"parts\":[]}'); failed(3, 'runtime', 'x')",
       "after it had returned"},
  };
  for (const auto& [script, message] : cases) {
    expect_error(begin + script + "\nimport time; time.sleep(60)", "engine", message, 3);
  }
}

TEST_F(Scripted, ValueBeyondTheLimitIsASerializationError) {
  expect_error(
      "for i in range(3): started(i)\nstarted(3)\n"
      "fd = os.memfd_create('big', os.MFD_ALLOW_SEALING); os.truncate(fd, (1 << 30) + 1)\n"
      "fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0xe)\n"
      "send('returned', [memfd('{}'), fd], index=3)\nimport time; time.sleep(60)",
      "serialization", "at most 1073741824", 3);
}

TEST_F(Scripted, ProgramThatClosesItsConnectionFails) {
  expect_error("started(0); channel.close()\nimport time; time.sleep(60)", "runtime", "closed the connection");
}

TEST_F(Scripted, RuntimeThatGivesBackWhatItWasNotGrantedIsStopped) {
  Assignment assignment = slot_->make_assignment(
      scripted("started(0)\nwhile True: send('lease_request', index=0); send('lease_release', index=0)"));
  assignment.gpu_count = 1;
  const RunReport report = slot_->run(assignment);
  EXPECT_EQ(report.error_kind, "engine");
  EXPECT_NE(report.error_message.find("does not have"), std::string::npos) << report.error_message;
}

TEST_F(Scripted, DeadlineEndsWhateverTheProgramDoes) {
  const char* scripts[] = {
      "started(0)\nwhile True: pass",
      "started(0)\nos.kill(os.getpid(), 19)",
      "started(0)\nimport time\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except: pass\n"
      "time.sleep(60)",
      "started(0)\nwhile True: os.write(1, b'x' * 65536)",
      "started(0)\nwhile True: send('lease_request', index=0); receive(); send('lease_release', index=0)",
      "started(0)\nfor i in range(20):\n  if os.fork() == 0: break\nimport time; time.sleep(60)",
  };
  for (const char* script : scripts) {
    Assignment assignment = slot_->make_assignment(scripted(script));
    assignment.timeout = std::chrono::milliseconds(300);
    assignment.gpu_count = 1;  // one of the scripts asks for a lease
    const RunReport report = slot_->run(assignment);
    EXPECT_EQ(report.ending, Ending::kTimedOut) << script;
    EXPECT_EQ(report.error_message, "the deadline of 0.3 s passed in instructions[0] (upload \"s\")") << script;
    EXPECT_EQ(report.outcome_members, nullptr);
    EXPECT_GE(report.elapsed_ms, 300);
  }
  EXPECT_TRUE(slot_->log().wait_for_record("\"event\":\"deadline_passed\",\"index\":0"));
}

TEST_F(Scripted, DeadlineBeforeTheFirstInstructionSaysSo) {
  Assignment assignment = slot_->make_assignment(scripted("import time; time.sleep(60)"));
  assignment.timeout = std::chrono::milliseconds(200);
  EXPECT_EQ(slot_->run(assignment).error_message, "the deadline of 0.2 s passed before instructions[0] (upload \"s\")");
}

TEST_F(Scripted, CancelEndsARunAndStaysWithoutEffectAfterwards) {
  Assignment assignment = slot_->make_assignment(scripted("started(0)\nimport time; time.sleep(60)"));
  const Uuid id = assignment.request_id;
  const size_t outcomes = slot_->log().outcome_count(), idles = slot_->log().idle_count();
  slot_->begin(assignment);
  ASSERT_TRUE(slot_->log().wait_for_record("\"event\":\"instruction_started\""));
  slot_->cancel(Uuid::random());
  slot_->cancel(id);
  slot_->cancel(id);
  ASSERT_TRUE(slot_->log().wait_for_outcome(outcomes + 1));
  EXPECT_EQ(slot_->log().last_report().ending, Ending::kCancelled);
  ASSERT_TRUE(slot_->log().wait_for_idle(idles + 1));
  slot_->cancel(id);
  EXPECT_EQ(slot_->run(scripted(std::string(kAnswer) + "completed()")).ending, Ending::kCompleted);
}

TEST_F(Scripted, NothingThatIsLeftRunningDelaysOrSurvivesTheAnswer) {
  const RunReport report =
      slot_->run(scripted("os.write(1, b'before')\n"
                          "for i in range(8):\n"
                          "  if os.fork() == 0:\n"
                          "    os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                          "    while True: os.write(1, b'flood' * 1000)\n" +
                          std::string(kAnswer) + "completed()\nimport time; time.sleep(60)"));
  EXPECT_EQ(report.ending, Ending::kCompleted);
  EXPECT_TRUE(members_of(report)["stdout"].get<std::string>().starts_with("before") ||
              members_of(report)["stdout"].get<std::string>().starts_with("flood"));
  // What remains: bubblewrap, its init, kcoral-init outside and the zygote.
  EXPECT_EQ(descendants(slot_->executor_pid()).size(), 4U);
}

TEST_F(Scripted, OutputIsKeptUpToItsLimitAndNeverBlocksTheProgram) {
  Assignment assignment =
      slot_->make_assignment(scripted("for i in range(64): os.write(1, b'o' * 65536); os.write(2, b'e' * 65536)\n" +
                                      std::string(kAnswer) + "completed()"));
  assignment.output_limit_bytes = 1000;
  const RunReport report = slot_->run(assignment);
  ASSERT_EQ(report.ending, Ending::kCompleted);
  json members = members_of(report);
  EXPECT_EQ(members["stdout"], std::string(1000, 'o'));
  EXPECT_EQ(members["stderr"], std::string(1000, 'e'));
  EXPECT_EQ(members["stdout_truncated"], true);
  EXPECT_TRUE(slot_->log().wait_for_record(R"("event":"output_truncated","stream":"stderr")"));
}

TEST_F(Scripted, BlobsArriveWhateverTheirNumber) {
  Assignment assignment =
      slot_->make_assignment(scripted("import hashlib\n"
                                      "assert len(blobs) == 1000, len(blobs)\n"
                                      "for digest, fd in blobs.items():\n"
                                      "  assert hashlib.sha256(os.pread(fd, 100, 0)).hexdigest() == digest\n" +
                                      std::string(kAnswer) + "completed()"));
  for (int i = 0; i < 1000; ++i) {
    const std::string text = fmt::format("blob {}", i);
    assignment.blobs.emplace_back(Digest(Sha256::of(text)), *SealedMemory::copy_of(text));
  }
  const RunReport report = slot_->run(assignment);
  EXPECT_EQ(report.ending, Ending::kCompleted) << report.error_message << members_of(report)["stderr"];
}

TEST_F(Scripted, TwoHundredReturnsWithDataComeThrough) {
  json instructions = json::array();
  instructions.push_back({{"op", "upload"},
                          {"kind", "module"},
                          {"id", "s"},
                          {"source",
                           "started(0)\n"
                           "for i in range(1, 201):\n"
                           "  started(i); returned(i, '{\"value\":{\"type\":\"bytes\",\"part\":0},\"parts\":[[1,%d]]}' "
                           "% i, b'#' + b'x' * i)\n"
                           "completed()\n"}});
  for (int i = 1; i <= 200; ++i) {
    instructions.push_back({{"op", "return"}, {"key", fmt::format("k{}", i)}, {"kind", "file"}, {"path", "p"}});
  }
  const RunReport report = slot_->run(json{{"instructions", instructions}}.dump());
  ASSERT_EQ(report.ending, Ending::kCompleted) << report.error_message;
  ASSERT_EQ(report.parts.size(), 200U);
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(part_text(report, i), std::string(i + 1, 'x'));
    EXPECT_EQ(report.parts[i].sha256, Sha256::of(std::string(i + 1, 'x')));
  }
  EXPECT_EQ(members_of(report)["results"]["k7"]["part"], "return:6");
}

TEST_F(Scripted, NothingLeaksOverTwoHundredPrograms) {
  const std::string good = scripted(std::string(kAnswer) + "completed()");
  const std::string bad = scripted("started(0); os._exit(1)");
  slot_->run(good);
  const pid_t executor = slot_->executor_pid();
  const size_t fds = open_fds(executor), processes = descendants(executor).size();
  const pid_t zygote = descendants(executor).back();
  const size_t zygote_fds = open_fds(zygote);
  for (int i = 0; i < 200; ++i) slot_->run(i % 3 == 0 ? bad : good);
  EXPECT_EQ(open_fds(executor), fds);
  EXPECT_EQ(open_fds(zygote), zygote_fds);
  EXPECT_EQ(descendants(executor).size(), processes);
}

TEST_F(Scripted, KilledZygoteLosesTheRunAndIsReplaced) {
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

TEST_F(Scripted, KilledExecutorLosesTheRunAndEverythingDies) {
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

TEST_F(Scripted, ZygoteThatFailsIsPermanentAndSaysWhy) {
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

TEST_F(Scripted, ZygoteThatMayComeNextTimeIsTriedAgain) {
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

TEST_F(Scripted, ShortageAtARunLosesItButNotTheSlot) {
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

TEST_F(Scripted, OutcomeThatCannotBeMadeLosesTheRunWithItsReason) {
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

TEST_F(Scripted, SandboxThatCannotBeSetUpIsTheEnvironments) {
  for (const size_t standby : {0, 1}) {
    const auto slot = make_slot("def enter(self): raise OSError('no tmpfs today')\nSandbox.enter = enter", standby);
    ASSERT_TRUE(slot->start_and_wait());
    const RunReport report = slot->run(scripted("os._exit(0)"));
    EXPECT_EQ(report.error_kind, "unavailable");
    EXPECT_EQ(report.error_message, "the program's sandbox could not be set up: no tmpfs today");
  }
}

TEST_F(Scripted, ProgramsTakeRuntimesThatWerePreparedAhead) {
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

TEST_F(Scripted, RuntimeThatFailsWhileItStandsByIsNoProgramsAffair) {
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

TEST_F(Scripted, FirstProcessOfAProgramIsCalledKcoralInit) {
  // It may be a moment behind the runtime.
  const RunReport report =
      slot_->run(scripted("started(0)\n"
                          "while open('/proc/1/comm').read() != 'kcoral-init\\n': pass\n"
                          "failed(0, 'runtime', 'seen')\n"));
  EXPECT_EQ(report.error_message, "seen");
}

TEST_F(Scripted, MalformedZygoteFramesLoseTheSlot) {
  const char* scripts[] = {"send_raw(b'x')", "send('prepared')", "send('what', id=1)",
                           "send('exited', id=1, process='x', code=1)", "send('zygote_ready', versions=[])"};
  for (const char* script : scripts) {
    const auto slot = make_slot(script);
    slot->start();
    ASSERT_TRUE(slot->log().wait_for_lost(1)) << script;
    EXPECT_FALSE(slot->log().lost()[0].permanent) << script;
  }
}

TEST_F(Scripted, PrepareThatFailsIsAnEngineError) {
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

TEST_F(Scripted, ProcessesThatCannotBeEndedQuarantineTheSlot) {
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

TEST_F(Scripted, AZygoteThatDoesNotTellOfAnEndIsReplaced) {
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
