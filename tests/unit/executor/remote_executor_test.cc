// An executor's life from the server's side: how it starts, waits, is lost and ends.
#include <sys/file.h>
#include <sys/wait.h>

#include <csignal>

#include "schema/limits.h"
#include "tests/unit/executor/slot_harness.h"

namespace kcoral::executor {
namespace {

TEST(RemoteExecutor, ReportsPythonAndVersionsWhenIdle) {
  SlotHarness slot;
  ASSERT_TRUE(slot.start_and_wait());
  EXPECT_EQ(slot.log().info().python, slot.config().python);
  EXPECT_TRUE(slot.log().info().versions.at("python").starts_with("3."));
}

TEST(RemoteExecutor, DestroyingItEndsEverything) {
  SlotHarness slot;
  ASSERT_TRUE(slot.start_and_wait());
  slot.begin(slot.make_assignment(program_of("def main():\n  import time; time.sleep(100)\n")));
  ASSERT_TRUE(slot.log().wait_for_running(1));
  std::vector<pid_t> processes = descendants(slot.executor_pid());
  processes.push_back(slot.executor_pid());
  ASSERT_GE(processes.size(), 5U);
  slot.stop();
  EXPECT_TRUE(wait_until_gone(processes));
  EXPECT_TRUE(slot.log().lost().empty());
}

TEST(RemoteExecutor, OneThatIsNeverReadyIsGivenUp) {
  SlotHarness slot([](ExecutorConfig& config) { config.executor_path = "/nonexistent/kcoral-executor"; });
  slot.start();
  ASSERT_TRUE(slot.log().wait_for_lost(limits::kStartsBeforeReadyMax));
  const auto lost = slot.log().lost();
  for (const auto& each : lost) {
    EXPECT_NE(each.reason.find("/nonexistent/kcoral-executor"), std::string::npos) << each.reason;
    EXPECT_EQ(each.permanent, &each == &lost.back());
  }
}

TEST(RemoteExecutor, FailedLaunchWhoseProcessEndsAtOnceIsLostOnce) {
  // Its configuration fits no frame, and it ends before that is reported: two reasons for one loss.
  SlotHarness slot([](ExecutorConfig& config) {
    config.executor_path = "/bin/true";
    config.hidden_paths = {std::string(limits::kFrameBytesMax, 'x')};
  });
  slot.start();
  ASSERT_TRUE(slot.log().wait_for_lost(limits::kStartsBeforeReadyMax));
  for (const auto& lost : slot.log().lost()) {
    EXPECT_NE(lost.reason.find("too large"), std::string::npos) << lost.reason;
  }
  EXPECT_TRUE(slot.log().lost().back().permanent);
}

/// An executor in Python that comes idle and answers a `run` with what `script` says; at hand: `frame` (the run's
/// body), `about` (its request_id and attempt) and send(type, fds=(), **fields).
std::string write_executor(const std::filesystem::path& path, const std::string& script) {
  std::ofstream file(path);
  file << "#!/usr/bin/python3 -SE\n"
          "import array, json, os, signal, socket\n"
          "server = socket.socket(fileno=3)\n"
          "def receive(): return json.loads(server.recvmsg(1 << 17, 4096)[0] or b'null')\n"
          "def send(type, fds=(), **fields):\n"
          "  rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []\n"
          "  server.sendmsg([json.dumps({'type': type, **fields}).encode()], rights)\n"
          "receive()\n"
          "send('idle', python='p', versions={})\n"
          "frame = receive()\n"
          "about = {name: frame[name] for name in ('request_id', 'attempt')} if frame else {}\n"
       << script << "\nwhile receive(): pass\n";
  file.close();
  std::filesystem::permissions(path, std::filesystem::perms::all);
  return path;
}

TEST(RemoteExecutor, EveryWordAboutARunIsHeldAgainstItsRequestAndAttempt) {
  const char* late[] = {
      "send('running', pid=7, request_id=about['request_id'], attempt=1)",
      "send('running', pid=7, request_id='0' * 8 + about['request_id'][8:], attempt=2)",
      "send('records', records=[], request_id=about['request_id'], attempt=1)",
      "send('output', [0], stream='stdout', request_id=about['request_id'], attempt=1)",
      "send('outcome_data', request_id=about['request_id'], attempt=1)",
      "send('outcome', request_id=about['request_id'], attempt=1)",
  };
  for (const char* script : late) {
    SlotHarness slot([&](ExecutorConfig& config) {
      config.executor_path = write_executor(std::filesystem::path(config.lock_path).parent_path() / "executor", script);
    });
    ASSERT_TRUE(slot.start_and_wait());
    Assignment assignment = slot.make_assignment("{}");
    assignment.attempt = 2;
    slot.begin(assignment);
    ASSERT_TRUE(slot.log().wait_for_lost(1)) << script;
    EXPECT_NE(slot.log().lost()[0].reason.find("a run that the executor does not have"), std::string::npos)
        << script << slot.log().lost()[0].reason;
    EXPECT_FALSE(slot.log().lost()[0].permanent);
    EXPECT_EQ(slot.log().outcome_count(), 0U);
  }
}

TEST(RemoteExecutor, AQuarantineComesAfterTheOutcome) {
  SlotHarness slot([](ExecutorConfig& config) {
    config.executor_path = write_executor(std::filesystem::path(config.lock_path).parent_path() / "executor",
                                          "send('quarantined', message='stuck', **about)");
  });
  ASSERT_TRUE(slot.start_and_wait());
  slot.begin(slot.make_assignment("{}"));
  ASSERT_TRUE(slot.log().wait_for_lost(1));
  EXPECT_NE(slot.log().lost()[0].reason.find("before the outcome"), std::string::npos) << slot.log().lost()[0].reason;
}

/// What an executor in Python sends as the outcome of its run.
constexpr const char* kOutcome =
    "def memory(text):\n"
    "  fd = os.memfd_create('m', os.MFD_ALLOW_SEALING); os.write(fd, text)\n"
    "  __import__('fcntl').fcntl(fd, 1033, 0xe); return fd\n"
    "def outcome():\n"
    "  send('outcome', [memory(b''), memory(b'[]'), memory(b'[]')], ending='cancelled', error_kind='',\n"
    "       error_message='', elapsed_ms=1, lease_wait_ms=0, lease_held_ms=0, **about)\n";

SlotHarness::Adjust with_executor(const std::string& script) {
  return [script](ExecutorConfig& config) {
    config.devices = {0};
    config.executor_path =
        write_executor(std::filesystem::path(config.lock_path).parent_path() / "executor", kOutcome + script);
  };
}

TEST(RemoteExecutor, OutputIsPassedOnAsItGrows) {
  SlotHarness slot(
      with_executor("fd = os.memfd_create('o'); os.write(fd, b'one'); send('output', [fd], stream='stderr', **about)\n"
                    "os.write(fd, b', two'); outcome(); send('idle', python='p', versions={})\n"));
  ASSERT_TRUE(slot.start_and_wait());
  slot.begin(slot.make_assignment("{}"));
  ASSERT_TRUE(slot.log().wait_for_idle(2));
  const auto outputs = slot.log().outputs();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].first, OutputStream::kStderr);
  char text[9] = {};
  EXPECT_EQ(::pread(outputs[0].second->get(), text, 8, 0), 8);
  EXPECT_STREQ(text, "one, two");
}

TEST(RemoteExecutor, OutputThatDoesNotFitIsABrokenExecutors) {
  const std::pair<const char*, const char*> cases[] = {
      {"send('output', [0], **about)", "\"stream\" is missing"},
      {"send('output', [0], stream='stdin', **about)", "\"stdout\" or \"stderr\""},
      {"send('output', stream='stdout', **about)", "0 descriptors"},
      {"send('output', [0, 0], stream='stdout', **about)", "2 descriptors"},
      {"outcome(); send('output', [0], stream='stdout', **about)", "after the outcome"},
  };
  for (const auto& [script, message] : cases) {
    SlotHarness slot(with_executor(script));
    ASSERT_TRUE(slot.start_and_wait());
    slot.begin(slot.make_assignment("{}"));
    ASSERT_TRUE(slot.log().wait_for_lost(1)) << script;
    EXPECT_NE(slot.log().lost()[0].reason.find(message), std::string::npos) << slot.log().lost()[0].reason;
    EXPECT_TRUE(slot.log().outputs().empty());
  }
}

constexpr const char* kAskForProgram =
    "send('lease_request', lease=1, purpose='program', priority=0, devices=[0], count=1)\n";
constexpr const char* kAskForContext =
    "send('lease_request', lease=2, purpose='context', priority=0, devices=[0], count=1)\n";
// Longer than an executor may hold a device, or take to end a run.
constexpr auto kTooLong = std::chrono::minutes(2);

TEST(RemoteExecutor, OneThatHoldsADeviceWithoutAWordIsLost) {
  const std::string idle = "send('idle', python='p', versions={})\n";
  for (const std::string& script : {"outcome()\n" + idle + kAskForContext, std::string(kAskForProgram) + "receive()\n" +
                                                                               "outcome()\n" + idle + kAskForContext}) {
    SlotHarness slot(with_executor(script));
    ASSERT_TRUE(slot.start_and_wait());
    slot.begin(slot.make_assignment("{}"));
    ASSERT_TRUE(slot.log().wait_for_idle(2)) << script;
    ASSERT_TRUE(slot.log().wait_for_context_ask()) << script;
    slot.advance(kTooLong);
    ASSERT_TRUE(slot.log().wait_for_lost(1)) << script;
    EXPECT_EQ(slot.log().lost()[0].reason, "the executor did not give its device back in time");
    EXPECT_FALSE(slot.log().lost()[0].permanent);
  }
}

TEST(RemoteExecutor, OneThatDoesNotEndItsRunIsLost) {
  SlotHarness slot(with_executor("outcome()"));
  ASSERT_TRUE(slot.start_and_wait());
  slot.begin(slot.make_assignment("{}"));
  ASSERT_TRUE(slot.log().wait_for_outcome(1));
  slot.advance(kTooLong);
  ASSERT_TRUE(slot.log().wait_for_lost(1));
  EXPECT_EQ(slot.log().lost()[0].reason, "the executor did not end a run in time");
}

constexpr auto kLongProgram = std::chrono::hours(1);

/// It asks for its device, and is not lost for what takes too long elsewhere.
void begin_long_program(SlotHarness& slot) {
  Assignment assignment = slot.make_assignment("{}");
  assignment.timeout = kLongProgram;
  slot.begin(assignment);
  ASSERT_TRUE(slot.log().wait_for_ask(1));
  slot.advance(kTooLong);
  slot.settle();
  EXPECT_TRUE(slot.log().lost().empty());
}

TEST(RemoteExecutor, ADeviceIsHeldForAsLongAsItsProgramMayRun) {
  SlotHarness slot(with_executor(kAskForProgram));
  ASSERT_TRUE(slot.start_and_wait());
  ASSERT_NO_FATAL_FAILURE(begin_long_program(slot));
  slot.advance(kLongProgram);
  ASSERT_TRUE(slot.log().wait_for_lost(1));
  EXPECT_EQ(slot.log().lost()[0].reason, "the executor did not answer in time");
}

TEST(RemoteExecutor, OneThatGoesOnAfterADenialIsLostHoweverLongItsProgramMayRun) {
  SlotHarness slot(with_executor(kAskForProgram));
  ASSERT_TRUE(slot.start_and_wait());
  slot.log().on_ask = [](const LeaseAsk&) {};
  ASSERT_NO_FATAL_FAILURE(begin_long_program(slot));
  slot.deny_lease(1, "GPU 0 is quarantined");
  slot.advance(kTooLong);
  ASSERT_TRUE(slot.log().wait_for_lost(1));
  EXPECT_EQ(slot.log().lost()[0].reason, "the executor did not answer in time");
}

TEST(RemoteExecutor, OneThatGoesOnAfterACancelIsLostHoweverLongItsProgramMayRun) {
  for (const bool has_device : {false, true}) {
    SlotHarness slot(with_executor(kAskForProgram));
    ASSERT_TRUE(slot.start_and_wait());
    Uuid request;
    slot.log().on_ask = [&](const LeaseAsk& ask) {
      slot.executor().cancel(request);
      if (has_device) slot.executor().grant_lease(ask.id, {0});  // they crossed
    };
    Assignment assignment = slot.make_assignment("{}");
    assignment.timeout = kLongProgram;
    request = assignment.request_id;
    slot.begin(assignment);
    ASSERT_TRUE(slot.log().wait_for_ask(1));
    slot.advance(kTooLong);
    ASSERT_TRUE(slot.log().wait_for_lost(1));
    EXPECT_EQ(slot.log().lost()[0].reason, "the executor did not answer in time");
  }
}

TEST(RemoteExecutor, OneThatIsQuarantinedMayTakeItsTime) {
  SlotHarness slot(with_executor(std::string(kAskForProgram) +
                                 "receive()\noutcome()\nsend('quarantined', message='stuck', **about)"));
  ASSERT_TRUE(slot.start_and_wait());
  slot.begin(slot.make_assignment("{}"));
  ASSERT_TRUE(slot.log().wait_for_quarantine(1));
  slot.advance(kTooLong);
  slot.settle();
  EXPECT_TRUE(slot.log().lost().empty());
}

TEST(RemoteExecutor, CancelAndBlobsNameTheirRun) {
  // It says in its outcome's message what it was sent.
  SlotHarness slot([](ExecutorConfig& config) {
    config.executor_path =
        write_executor(std::filesystem::path(config.lock_path).parent_path() / "executor",
                       "said = [frame, receive()]\n"
                       "send('running', pid=7, **about)\n"
                       "said.append(receive())\n"
                       "def memory(text):\n"
                       "  fd = os.memfd_create('m', os.MFD_ALLOW_SEALING); os.write(fd, text)\n"
                       "  __import__('fcntl').fcntl(fd, 1033, 0xe); return fd\n"
                       "send('outcome', [memory(b''), memory(b'[]'), memory(b'[]')], ending='cancelled',\n"
                       "     error_kind='', error_message=json.dumps(said), elapsed_ms=1, lease_wait_ms=0,\n"
                       "     lease_held_ms=0, **about)\n"
                       "send('records', records=[], **about)\n");
  });
  ASSERT_TRUE(slot.start_and_wait());
  Assignment assignment = slot.make_assignment("{}");
  assignment.attempt = 3;
  assignment.blobs.emplace_back(Digest(Sha256::of("b")), *SealedMemory::copy_of("b"));
  slot.begin(assignment);
  ASSERT_TRUE(slot.log().wait_for_running(1));
  slot.cancel(Uuid::random());
  slot.cancel(assignment.request_id);
  ASSERT_TRUE(slot.log().wait_for_outcome(1));
  const auto said = nlohmann::json::parse(slot.log().last_report().error_message);
  ASSERT_EQ(said.size(), 3U);
  const char* types[] = {"run", "blobs", "cancel"};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(said[i]["type"], types[i]);
    EXPECT_EQ(said[i]["request_id"], assignment.request_id.str());
    EXPECT_EQ(said[i]["attempt"], 3);
  }
}

TEST(RemoteExecutor, ShortageAtSetUpPasses) {
  SlotHarness slot;
  const int lock = ::open(slot.config().lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  slot.start();
  // It waits for the lock before it sets anything up.
  const pid_t executor = slot.executor_pid();
  const SteadyTime end = Clock::system().now() + kTestWait;
  while (!has_open(executor, slot.config().lock_path)) {
    ASSERT_LT(Clock::system().now(), end);
    std::this_thread::yield();
  }
  leave_descriptors(executor, 0);
  ::close(lock);
  ASSERT_TRUE(slot.log().wait_for_idle(1));
  ASSERT_EQ(slot.log().lost().size(), 1U);
  EXPECT_FALSE(slot.log().lost()[0].permanent);
  EXPECT_NE(slot.log().lost()[0].reason.find("Too many open files"), std::string::npos) << slot.log().lost()[0].reason;
}

TEST(RemoteExecutor, WhatTheOperatorMustMendIsPermanent) {
  const std::pair<std::function<void(ExecutorConfig&)>, const char*> cases[] = {
      {[](ExecutorConfig& config) { config.uid = 0; }, "uid 0"},
      {[](ExecutorConfig& config) { config.python = "/nonexistent/python3"; }, "/nonexistent/python3"},
      {[](ExecutorConfig& config) { config.read_only_paths = {"/nonexistent/models"}; }, "/nonexistent/models"},
      {[](ExecutorConfig& config) { config.read_only_paths = {"/tmp/models"}; }, "/tmp/models"},
      {[](ExecutorConfig& config) { config.preload = {"no_such_module_here"}; }, "no_such_module_here"},
      {[](ExecutorConfig& config) { config.lock_path = "/nonexistent/lock"; }, "/nonexistent/lock"},
  };
  for (const auto& [adjust, message] : cases) {
    SlotHarness slot(adjust);
    slot.start();
    ASSERT_TRUE(slot.log().wait_for_lost(1)) << message;
    EXPECT_TRUE(slot.log().lost()[0].permanent) << slot.log().lost()[0].reason;
    EXPECT_NE(slot.log().lost()[0].reason.find(message), std::string::npos) << slot.log().lost()[0].reason;
  }
}

TEST(RemoteExecutor, WaitsForTheExecutorOfAnEarlierServer) {
  SlotHarness slot;
  const int lock = ::open(slot.config().lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  slot.start();
  // It has read our files only once it holds the lock: until then it has no child.
  const pid_t pid = slot.executor_pid();
  ASSERT_GT(pid, 0);
  const SteadyTime until = Clock::system().now() + std::chrono::milliseconds(300);
  while (Clock::system().now() < until) {
    ASSERT_TRUE(descendants(pid).empty());
    std::this_thread::yield();
  }
  EXPECT_EQ(slot.log().idle_count(), 0U);
  ::close(lock);
  EXPECT_TRUE(slot.log().wait_for_idle(1));
}

TEST(RemoteExecutor, HoldsItsLockWhileItLives) {
  SlotHarness slot;
  ASSERT_TRUE(slot.start_and_wait());
  const int lock = ::open(slot.config().lock_path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(lock, 0);
  EXPECT_NE(::flock(lock, LOCK_EX | LOCK_NB), 0);
  slot.stop();
  EXPECT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  ::close(lock);
}

TEST(RemoteExecutor, LeavesSignalsToTheServer) {
  SlotHarness slot;
  ASSERT_TRUE(slot.start_and_wait());
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::kill(slot.executor_pid(), number);
  EXPECT_EQ(slot.run(program_of("def main(): return 1\n")).ending, schema::Outcome::Ending::kCompleted);
  EXPECT_NE(::getsid(slot.executor_pid()), ::getsid(0));
}

TEST(RemoteExecutor, ExecutorsDieWithTheirServer) {
  // A server of its own, in a child: it says which processes it has, then is killed without a word to anybody.
  std::array<int, 2> pipe;
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const pid_t server = ::fork();
  if (server == 0) {
    auto slot = std::make_unique<SlotHarness>();
    if (!slot->start_and_wait()) ::_exit(1);
    slot->begin(slot->make_assignment(program_of("def main():\n  while True: pass\n")));
    if (!slot->log().wait_for_running(1)) ::_exit(1);
    std::vector<pid_t> processes = descendants(slot->executor_pid());
    processes.push_back(slot->executor_pid());
    if (::write(pipe[1], processes.data(), processes.size() * sizeof(pid_t)) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(pipe[1]);
  std::vector<pid_t> processes(64);
  const ssize_t size = ::read(pipe[0], processes.data(), processes.size() * sizeof(pid_t));
  ::close(pipe[0]);
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  ASSERT_GE(size, static_cast<ssize_t>(6 * sizeof(pid_t)));
  processes.resize(static_cast<size_t>(size) / sizeof(pid_t));
  EXPECT_TRUE(wait_until_gone(processes));
}

}  // namespace
}  // namespace kcoral::executor
