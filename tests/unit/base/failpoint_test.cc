#include "base/failpoint.h"

#include <gtest/gtest.h>

#include <csignal>
#include <set>
#include <string>

namespace kcoral {
namespace {

constexpr std::string_view kName = "store.admit.begun";

/// In a process of its own, since it stays armed.
void pass_armed(const char* setting, int passes) {
  if (!arm_failpoints(setting)) std::_Exit(1);
  for (int i = 0; i < passes; ++i) failpoint("store.admit.begun");
  std::_Exit(0);
}

TEST(Failpoint, NamesAreDistinctAndSayPartStepAndMoment) {
  const std::set<std::string_view> names(std::begin(kFailpoints), std::end(kFailpoints));
  EXPECT_EQ(names.size(), std::size(kFailpoints));
  for (const std::string_view name : names) EXPECT_EQ(std::count(name.begin(), name.end(), '.'), 2) << name;
}

TEST(Failpoint, DoesNothingUnlessItIsArmed) {
  ASSERT_TRUE(arm_failpoints(nullptr));
  failpoint("store.admit.begun");
}

TEST(Failpoint, KillsAtThePassThatWasAskedFor) {
  EXPECT_EXIT(pass_armed("store.admit.begun", 1), testing::KilledBySignal(SIGKILL),
              "failpoint store.admit.begun kills");
  EXPECT_EXIT(pass_armed("store.admit.begun:3", 3), testing::KilledBySignal(SIGKILL), "passed");
  EXPECT_EXIT(pass_armed("store.admit.begun:3", 2), testing::ExitedWithCode(0), "passed");
  EXPECT_EXIT(pass_armed("store.admit.applied", 9), testing::ExitedWithCode(0), "passed");
}

TEST(Failpoint, NotesWhatIsPassedWithoutKilling) {
  EXPECT_EXIT(pass_armed("note", 9), testing::ExitedWithCode(0), "^failpoint store.admit.begun passed\n$");
}

TEST(Failpoint, AnUnknownNameIsAnErrorThatListsThoseThatThereAre) {
  for (const char* setting : {"store.admit", "", ":1", "store.admit.begun.more:1"}) {
    const Status armed = arm_failpoints(setting);
    ASSERT_FALSE(armed) << setting;
    EXPECT_EQ(armed.error().kind, ErrorKind::kEnvironment);
    EXPECT_NE(armed.error().message.find(kName), std::string::npos) << armed.error().message;
  }
}

TEST(Failpoint, ACountIsAWholeNumberFromOne) {
  for (const char* setting : {"store.admit.begun:", "store.admit.begun:0", "store.admit.begun:2x"}) {
    EXPECT_EXIT(pass_armed(setting, 1), testing::ExitedWithCode(1), "") << setting;
  }
}

}  // namespace
}  // namespace kcoral
