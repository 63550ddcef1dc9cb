#include "devices/clearings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "devices/fake_devices.h"
#include "schema/limits.h"

namespace kcoral::devices {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

constexpr uint64_t kMiB = limits::kMiB;
constexpr uint64_t kUnused = 1024 * kMiB;

// 10: the server. 11, 12: executors. 21 below 11: what runs its programs. 40: somebody else's.
constexpr pid_t kServer = 10, kExecutor = 11, kOtherExecutor = 12, kBubblewrap = 20, kProgram = 21, kSomebody = 40;

class ClearingsTest : public testing::Test {
 protected:
  ClearingsTest() {
    table_.processes = {{1, {0, 1, "systemd"}},
                        {kServer, {1, 1, "kcoral"}},
                        {kExecutor, {kServer, 1, "kcoral-executor"}},
                        {kOtherExecutor, {kServer, 1, "kcoral-executor"}},
                        {kBubblewrap, {kExecutor, 1, "bwrap"}},
                        {kProgram, {kBubblewrap, 4, "python3"}},
                        {kSomebody, {1, 1, "python3"}}};
  }
  void clear(int device = 0) {
    clearings_.add(device, {kExecutor, kOtherExecutor},
                   {[this, device] { said_.push_back("clear " + std::to_string(device)); },
                    [this](const std::string& reason) { said_.push_back("stuck: " + reason); }});
    clearings_.look();
  }
  /// Looks whenever it is time, for this long.
  void pass(std::chrono::milliseconds time) {
    const SteadyTime end = clock_.now() + time;
    for (auto next = clearings_.next(); next && *next <= end; next = clearings_.next()) {
      clock_.advance(std::chrono::duration_cast<std::chrono::microseconds>(std::max(*next - clock_.now(), 0ns)));
      clearings_.look();
    }
  }
  void in_use(std::vector<DeviceProcess> processes, uint64_t missing_bytes = 0) {
    DeviceState state;
    state.memory_used_bytes = kUnused + missing_bytes;
    for (const auto& process : processes) state.memory_used_bytes += process.memory_bytes.value_or(0);
    state.processes = std::move(processes);
    devices_.set(0, state);
  }
  /// Its executor has died, and the kernel has not ended it yet.
  void abandon_program() {
    table_.processes.erase(kExecutor);
    table_.processes.erase(kBubblewrap);
    table_.processes[kProgram].parent = 1;
  }

  FakeClock clock_;
  FakeDevices devices_{2};
  FakeProcessTable table_;
  Clearings clearings_{devices_, {{0, kUnused}, {1, kUnused}}, clock_, table_};
  std::vector<std::string> said_;
};

TEST_F(ClearingsTest, ADeviceThatNobodyUsesIsClearAtTheFirstLook) {
  clear();
  EXPECT_THAT(said_, ElementsAre("clear 0"));
  EXPECT_EQ(clearings_.next(), std::nullopt);
}

TEST_F(ClearingsTest, WhoLivesUnderALivingExecutorOrBesideTheServerIsNotInTheWay) {
  in_use({{kProgram, 600 * kMiB}, {kSomebody, 100 * kMiB}});
  clear();
  EXPECT_THAT(said_, ElementsAre("clear 0"));
}

TEST_F(ClearingsTest, WhoseExecutorHasDiedIsWaitedFor) {
  abandon_program();
  in_use({{kProgram, 600 * kMiB}});
  clear();
  pass(1s);
  EXPECT_THAT(said_, IsEmpty());
  in_use({});
  pass(50ms);
  EXPECT_THAT(said_, ElementsAre("clear 0"));
}

TEST_F(ClearingsTest, AnExecutorThatIsNotNamedIsNotALivingOne) {
  table_.processes[kBubblewrap].parent = 99;
  table_.processes[99] = {kServer, 1, "kcoral-executor"};
  in_use({{kProgram, 600 * kMiB}});
  clear();
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(ClearingsTest, WhatStaysIsToldOnceAfterTenSecondsAndTheDeviceComesBackAllTheSame) {
  abandon_program();
  in_use({{kProgram, 600 * kMiB}});
  clear();
  pass(9s);
  EXPECT_THAT(said_, IsEmpty());
  pass(30s);
  EXPECT_THAT(said_, ElementsAre("stuck: process 21 still uses it"));
  in_use({});
  pass(1s);
  EXPECT_THAT(said_, ElementsAre("stuck: process 21 still uses it", "clear 0"));
}

TEST_F(ClearingsTest, LooksBecomeRarer) {
  abandon_program();
  in_use({{kProgram, 600 * kMiB}});
  clear();
  const int looks = devices_.looks();
  EXPECT_EQ(*clearings_.next() - clock_.now(), 1ms);
  pass(1s);
  EXPECT_EQ(*clearings_.next() - clock_.now(), 50ms);
  EXPECT_LT(devices_.looks() - looks, 30);
  pass(10s);
  EXPECT_EQ(*clearings_.next() - clock_.now(), 1000ms);
}

TEST_F(ClearingsTest, AProcessThatThisMachineNoLongerKnowsEndsJustNow) {
  in_use({{777, 600 * kMiB}});
  clear();
  EXPECT_THAT(said_, IsEmpty());
  in_use({});
  pass(50ms);
  EXPECT_THAT(said_, ElementsAre("clear 0"));
}

TEST_F(ClearingsTest, InAContainerWhoseDriverGivesTheHostsNumbersAKnownProgramIsNotTakenForOneThatIsLeftBehind) {
  table_.whole_machine = false;
  in_use({{40021, 600 * kMiB}});  // kProgram, as the host numbers it
  clear();
  EXPECT_THAT(said_, ElementsAre("clear 0"));
}

TEST_F(ClearingsTest, InSuchAContainerWhatAnExecutorLeftIsWaitedForByOurOwnTable) {
  table_.whole_machine = false;
  abandon_program();
  in_use({{40021, 600 * kMiB}});
  clear();
  pass(11s);
  EXPECT_THAT(said_, ElementsAre("stuck: process 21 of an ended program is still there, and may use it"));
  table_.processes.erase(kProgram);
  pass(1s);
  EXPECT_EQ(said_.back(), "clear 0");
}

TEST_F(ClearingsTest, InSuchAContainerWhatHasEndedIsNotInTheWayThoughNobodyAskedHow) {
  table_.whole_machine = false;
  abandon_program();
  table_.processes[kProgram].has_ended = true;
  in_use({{40021, 600 * kMiB}});
  clear();
  EXPECT_THAT(said_, ElementsAre("clear 0"));
}

TEST_F(ClearingsTest, InSuchAContainerAnExecutorThatWasStartedAgainIsNotInTheWay) {
  table_.whole_machine = false;
  table_.processes.erase(kExecutor);
  table_.processes[99] = {kServer, 1, "kcoral-executor"};
  table_.processes[kBubblewrap].parent = 99;
  in_use({{40021, 600 * kMiB}});
  clear();
  EXPECT_THAT(said_, ElementsAre("clear 0"));
}

TEST_F(ClearingsTest, InSuchAContainerAProgramIsNoExecutorWhateverItCallsItself) {
  table_.whole_machine = false;
  abandon_program();
  table_.processes[22] = {kProgram, 5, "python3"};
  table_.processes[kProgram].name = "kcoral-executor";
  in_use({{40022, 600 * kMiB}});
  clear();
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(ClearingsTest, MemoryThatNobodyHasIsWaitedFor) {
  in_use({{kProgram, 600 * kMiB}}, /*missing_bytes=*/513 * kMiB);
  clear();
  pass(11s);
  EXPECT_THAT(said_, ElementsAre("stuck: 513 MiB of its memory are in use, and no process has them"));
  in_use({{kProgram, 600 * kMiB}}, /*missing_bytes=*/512 * kMiB);
  pass(1s);
  EXPECT_EQ(said_.back(), "clear 0");
}

TEST_F(ClearingsTest, WhereTheDriverDoesNotSayWhatAProcessHoldsNoMemoryIsMissed) {
  in_use({{kProgram, std::nullopt}}, /*missing_bytes=*/4096 * kMiB);
  clear();
  EXPECT_THAT(said_, ElementsAre("clear 0"));
}

TEST_F(ClearingsTest, ADriverThatDoesNotAnswerKeepsTheDevice) {
  devices_.fail_with(Error{ErrorKind::kEnvironment, "the NVIDIA driver is asleep"});
  clear();
  pass(11s);
  EXPECT_THAT(said_, ElementsAre("stuck: the NVIDIA driver is asleep"));
  devices_.fail_with(std::nullopt);
  pass(1s);
  EXPECT_EQ(said_.back(), "clear 0");
}

TEST_F(ClearingsTest, DevicesAreClearedEachInItsOwnTime) {
  abandon_program();
  in_use({{kProgram, 600 * kMiB}});
  clear(0);
  clear(1);
  EXPECT_THAT(said_, ElementsAre("clear 1"));
  EXPECT_THAT(clearings_.next(), Optional(clock_.now() + 1ms));
}

}  // namespace
}  // namespace kcoral::devices
