// An executor's life from the server's side: how it starts, waits, is lost and ends.
#include <sys/file.h>
#include <sys/wait.h>

#include <csignal>

#include "slot_harness.h"

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

TEST(RemoteExecutor, MissingProgramIsLostAndTriedAgain) {
  SlotHarness slot([](ExecutorConfig& config) { config.executor_path = "/nonexistent/kcoral-executor"; });
  slot.start();
  ASSERT_TRUE(slot.log().wait_for_lost(2));
  EXPECT_NE(slot.log().lost()[0].reason.find("/nonexistent/kcoral-executor"), std::string::npos);
  EXPECT_FALSE(slot.log().lost()[0].permanent);
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
