#include "executor/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

namespace kcoral::executor {
namespace {

constexpr std::chrono::seconds kWait{30};

ProcessSpec shell(const std::string& script) { return {{"/bin/sh", "-c", script}, {}, false, std::nullopt}; }

TEST(ChildProcess, TellsHowItEnded) {
  auto exited = ChildProcess::start(shell("exit 3"));
  ASSERT_TRUE(exited.has_value());
  EXPECT_EQ(exited->wait_for(kWait), (ExitStatus{false, 3}));
  EXPECT_EQ(exited->try_wait(), (ExitStatus{false, 3}));
  auto killed = ChildProcess::start(shell("kill -SEGV $$"));
  ASSERT_TRUE(killed.has_value());
  EXPECT_EQ(killed->wait_for(kWait), (ExitStatus{true, SIGSEGV}));
  EXPECT_EQ(describe({true, SIGSEGV}), "signal 11 (SIGSEGV)");
  EXPECT_EQ(describe({true, 63}), "signal 63");
  EXPECT_EQ(describe({false, 3}), "exit code 3");
}

TEST(ChildProcess, CannotBeStartedIsAnError) {
  const auto missing = ChildProcess::start({{"/nonexistent"}, {}, false, std::nullopt});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().kind, ErrorKind::kEnvironment);
  EXPECT_NE(missing.error().message.find("/nonexistent"), std::string::npos);
  EXPECT_FALSE(ChildProcess::start({{"/etc/passwd"}, {}, false, std::nullopt}).has_value());
}

TEST(ChildProcess, DestroyingKillsAndReaps) {
  pid_t pid;
  {
    auto child = ChildProcess::start(shell("exec sleep 1000"));
    ASSERT_TRUE(child.has_value());
    pid = child->pid();
    EXPECT_EQ(child->try_wait(), std::nullopt);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(ChildProcess, ChildHasExactlyItsDescriptorsAndDefaultSignals) {
  // One that would be inherited, as a careless library leaves it.
  std::array<int, 2> leaked;
  ASSERT_EQ(::pipe(leaked.data()), 0);
  ProcessSpec spec = shell("ls /proc/self/fd | tr '\\n' ' '; grep -E 'SigBlk|SigIgn' /proc/self/status");
  // Numbers that overlap: each is the other's source.
  spec.fds = {{4, leaked[0]}, {3, leaked[1]}};
  std::signal(SIGUSR1, SIG_IGN);
  auto run = run_captured(spec, kWait);
  std::signal(SIGUSR1, SIG_DFL);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->out, "0 1 2 3 4 5 SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");  // 5: ls itself
  ::close(leaked[0]);
  ::close(leaked[1]);
}

TEST(ChildProcess, DescriptorsMayHaveAnyNumber) {
  std::array<int, 2> pipe;
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  ASSERT_EQ(::write(pipe[1], "through", 7), 7);
  ProcessSpec spec = shell("head -c 7 /proc/self/fd/300; ls /proc/self/fd | wc -l");
  // Every number around those that duplicates are likely to get.
  for (int number = 250; number <= 300; ++number) spec.fds.emplace_back(number, pipe[0]);
  auto run = run_captured(spec, kWait);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->out, "through55\n");  // 0 to 2, these 51, and that of ls itself
  spec.arguments = {"/nonexistent"};
  const auto missing = ChildProcess::start(spec);
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("/nonexistent"), std::string::npos) << missing.error().message;
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(ChildProcess, NeedsFewDescriptorsAndSaysWhenThereAreTooFew) {
  rlimit kept;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &kept), 0);
  const rlimit small{64, kept.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  auto run = run_captured(shell("echo out"), kWait);
  ProcessSpec spec = shell("true");
  spec.fds = {{63, STDIN_FILENO}};
  auto refused = ChildProcess::start(spec);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &kept), 0);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ(run->out, "out\n");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("cannot start /bin/sh: fcntl"), std::string::npos) << refused.error().message;
}

TEST(ChildProcess, RunsAsAnotherUserForGood) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  ProcessSpec spec = shell("id -u; id -g; id -G; grep CapPrm /proc/self/status");
  spec.user = ProcessSpec::User{65534, 65534};
  auto run = run_captured(spec, kWait);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->out, "65534\n65534\n65534\nCapPrm:\t0000000000000000\n");
}

TEST(ChildProcess, RunsAnOpenProgramThatItsUserCannotReach) {
  std::string directory = std::filesystem::temp_directory_path() / "kcoral-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  std::filesystem::copy_file("/bin/sh", directory + "/sh");
  UniqueFd program(::open((directory + "/sh").c_str(), O_PATH | O_CLOEXEC));
  ASSERT_TRUE(program);
  ASSERT_EQ(::chmod(directory.c_str(), 0), 0);
  ProcessSpec spec = shell("echo through; ls /proc/self/fd | tr '\\n' ' '");
  spec.arguments[0] = directory + "/sh";
  spec.fds = {{program.get(), STDIN_FILENO}};  // a number that the child is given, too
  if (::geteuid() == 0) spec.user = ProcessSpec::User{65534, 65534};
  auto refused = run_captured(spec, kWait);
  spec.open_program = program.get();
  auto run = run_captured(spec, kWait);
  ::chmod(directory.c_str(), 0700);
  std::filesystem::remove_all(directory);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("execute: Permission denied"), std::string::npos) << refused.error().message;
  ASSERT_TRUE(run.has_value()) << run.error().message;
  const std::string given = std::to_string(program.get());
  const std::string open = program.get() == 3 ? "0 1 2 3 4 " : "0 1 2 3 " + given + " ";  // one is that of ls itself
  EXPECT_EQ(run->out, "through\n" + open);
}

TEST(RunCaptured, KeepsBothStreamsAndBoundsTime) {
  auto run = run_captured(shell("echo out; echo err >&2; cat; exit 4"), kWait);
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->out, "out\n");
  EXPECT_EQ(run->err, "err\n");
  EXPECT_EQ(run->status, (ExitStatus{false, 4}));
  const auto slow = run_captured(shell("exec sleep 1000"), std::chrono::milliseconds(50));
  ASSERT_FALSE(slow.has_value());
  EXPECT_EQ(slow.error().kind, ErrorKind::kTimeout);
  auto much = run_captured(shell("head -c 3000000 /dev/zero"), kWait);
  ASSERT_TRUE(much.has_value());
  EXPECT_EQ(much->out.size(), 1U << 20);
}

}  // namespace
}  // namespace kcoral::executor
