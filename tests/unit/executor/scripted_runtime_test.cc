// What a program can do to its executor, which shares nothing with it but a socket and pipes: how it ends, frames and
// values that do not fit, deadlines, output, and whatever it leaves behind.
#include <fmt/format.h>

#include <csignal>

#include "tests/unit/executor/scripted_harness.h"

namespace kcoral::executor {
namespace {

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

TEST_F(Scripted, FirstProcessOfAProgramIsCalledKcoralInit) {
  // It may be a moment behind the runtime.
  const RunReport report =
      slot_->run(scripted("started(0)\n"
                          "while open('/proc/1/comm').read() != 'kcoral-init\\n': pass\n"
                          "failed(0, 'runtime', 'seen')\n"));
  EXPECT_EQ(report.error_message, "seen");
}

}  // namespace
}  // namespace kcoral::executor
