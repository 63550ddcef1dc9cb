#include "devices/process_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

namespace kcoral::devices {
namespace {

using testing::Contains;

TEST(ProcessTable, KnowsThisProcess) {
  ASSERT_EQ(::prctl(PR_SET_NAME, "a b) (c"), 0);
  const auto self = ProcessTable::system().find(::getpid());
  ASSERT_TRUE(self);
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_EQ(self->name, "a b) (c");
  EXPECT_EQ(self->depth, ProcessTable::system().own_depth());
  EXPECT_THAT(ProcessTable::system().list(), Contains(::getpid()));
}

TEST(ProcessTable, SaysThatAProcessHasEndedBeforeItsParentHasAsked) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const auto ended = ProcessTable::system().find(child);
  ASSERT_TRUE(ended);
  EXPECT_TRUE(ended->has_ended);
  EXPECT_EQ(ended->parent, ::getpid());
  EXPECT_FALSE(ProcessTable::system().find(::getpid())->has_ended);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(ProcessTable::system().find(child));
}

/// Its number is that of its first thread, which may be the first to end.
TEST(ProcessTable, AProcessWhoseFirstThreadHasEndedLives) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::thread([] {
      for (;;) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);
  }
  std::string state;
  while (!state.starts_with("Z")) {
    std::ifstream status("/proc/" + std::to_string(child) + "/status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("State:\t")) state = line.substr(7);
    }
  }
  const auto process = ProcessTable::system().find(child);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(process);
  EXPECT_FALSE(process->has_ended);
}

TEST(ProcessTable, HasNoProcessThatDoesNotExist) {
  EXPECT_FALSE(ProcessTable::system().find(0));
  EXPECT_FALSE(ProcessTable::system().find(-1));
  EXPECT_FALSE(ProcessTable::system().find(1 << 30));
}

}  // namespace
}  // namespace kcoral::devices
