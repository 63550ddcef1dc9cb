#include "devices/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/devices/fake_devices.h"

namespace kcoral::devices {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr pid_t kNobody = 1 << 23;  // no process ever has this number
constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr auto kPatience = 30s;

/// Never stuck, unless a test says otherwise; in a hurry.
constexpr WatchPace kNeverStuck{1ms, 1ms, 1ms, 1h};
constexpr WatchPace kStuckAtOnce{1ms, 1ms, 1ms, 0ms};

DeviceState used_by(std::vector<pid_t> pids, uint64_t memory_used_bytes = 0) {
  DeviceState state;
  for (const pid_t pid : pids) state.processes.push_back({pid, 0});
  state.memory_used_bytes = memory_used_bytes;
  return state;
}

/// A process that waits for one below it, which waits to be ended.
class Family {
 public:
  /// `in_namespace`: the lower one has a pid namespace of its own, as programs do. Null where that is refused.
  static std::unique_ptr<Family> start(bool in_namespace) {
    int ends[2];
    KCORAL_CHECK(::pipe(ends) == 0);
    const pid_t parent = ::fork();
    if (parent == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const bool refused = in_namespace && ::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0;
      const pid_t child = refused ? 0 : ::fork();
      if (child == 0 && !refused) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) ::pause();
      }
      if (::write(ends[1], &child, sizeof child) != sizeof child) ::_exit(1);
      if (child > 0) ::waitpid(child, nullptr, 0);
      ::_exit(0);
    }
    pid_t child = 0;
    KCORAL_CHECK(::read(ends[0], &child, sizeof child) == sizeof child);
    ::close(ends[0]);
    ::close(ends[1]);
    std::unique_ptr<Family> family(new Family(parent, child));
    return child == 0 ? nullptr : std::move(family);
  }
  ~Family() {
    if (child > 0) ::kill(child, SIGKILL);
    ::waitpid(parent, nullptr, 0);
  }
  const pid_t parent, child;

 private:
  Family(pid_t parent_pid, pid_t child_pid) : parent(parent_pid), child(child_pid) {}
};

class WatchTest : public testing::Test {
 protected:
  void watch(const WatchPace& pace = kNeverStuck) {
    watch_ = std::make_unique<Watch>(devices_, std::vector<int>{0, 1}, pace);
  }
  void clear(int device, std::vector<pid_t> executors = {}) {
    const std::string name = std::to_string(device);
    watch_->when_clear(device, std::move(executors),
                       {[=, this] { hear("cleared " + name); },
                        [=, this](const std::string& reason) { hear("stuck " + name + ": " + reason); }});
  }
  /// What was called back, once it is so much.
  std::vector<std::string> heard(size_t count) {
    const MutexLock lock(mutex_);
    const SteadyTime end = Clock::system().now() + kPatience;
    while (heard_.size() < count) {
      if (!changed_.wait_until(mutex_, end)) break;
    }
    return heard_;
  }
  /// Once the devices were looked at so many more times.
  void wait_for_looks(int count) {
    const SteadyTime end = Clock::system().now() + kPatience;
    for (const int before = devices_.looks(); devices_.looks() < before + count;) {
      ASSERT_LT(Clock::system().now(), end);
    }
  }

  FakeDevices devices_{2};
  std::unique_ptr<Watch> watch_;

 private:
  void hear(std::string what) {
    EXPECT_NE(std::this_thread::get_id(), test_thread_);
    const MutexLock lock(mutex_);
    heard_.push_back(std::move(what));
    changed_.notify_all();
  }

  const std::thread::id test_thread_ = std::this_thread::get_id();
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<std::string> heard_ KCORAL_GUARDED_BY(mutex_);
};

TEST_F(WatchTest, ADeviceWithoutAnythingIsClear) {
  watch();
  clear(1);
  EXPECT_THAT(heard(1), ElementsAre("cleared 1"));
}

TEST_F(WatchTest, AProcessThatHasEndedKeepsItUntilTheDriverHasForgottenIt) {
  watch();
  devices_.set(0, used_by({kNobody}));
  clear(0);
  wait_for_looks(10);
  EXPECT_THAT(heard(0), IsEmpty());
  devices_.set(0, {});
  EXPECT_THAT(heard(1), ElementsAre("cleared 0"));
  wait_for_looks(10);
  EXPECT_EQ(heard(1).size(), 1u) << "once";
}

TEST_F(WatchTest, WhatStaysTooLongIsToldOnceAndClearedAfterAll) {
  watch(kStuckAtOnce);
  devices_.set(0, used_by({kNobody}));
  clear(0);
  EXPECT_THAT(heard(1), ElementsAre(fmt::format("stuck 0: process {} still uses it", kNobody)));
  wait_for_looks(10);
  EXPECT_EQ(heard(1).size(), 1u) << "once";
  devices_.set(0, {});
  EXPECT_EQ(heard(2).back(), "cleared 0");
}

TEST_F(WatchTest, OneThatIsStuckHoldsNoOtherUp) {
  watch(kStuckAtOnce);
  devices_.set(0, used_by({kNobody}));
  clear(0);
  heard(1);
  clear(1);
  EXPECT_EQ(heard(2).back(), "cleared 1");
}

TEST_F(WatchTest, ProgramsOfLivingExecutorsMayStay) {
  const auto family = Family::start(/*in_namespace=*/true);
  if (family == nullptr) GTEST_SKIP() << "no pid namespace can be made here";
  watch(kStuckAtOnce);
  devices_.set(0, used_by({family->child}));
  clear(0, {kNobody, family->parent});
  EXPECT_THAT(heard(1), ElementsAre("cleared 0"));
  clear(0, {family->child});
  EXPECT_EQ(heard(2).back(), "cleared 0");
}

TEST_F(WatchTest, ProgramsWhoseExecutorIsGoneMayNot) {
  const auto family = Family::start(/*in_namespace=*/true);
  if (family == nullptr) GTEST_SKIP() << "no pid namespace can be made here";
  watch(kStuckAtOnce);
  devices_.set(0, used_by({family->child}));
  clear(0, {kNobody});
  EXPECT_THAT(heard(1), ElementsAre(HasSubstr(fmt::format("process {} still uses it", family->child))));
}

TEST_F(WatchTest, WhoeverLivesBesideTheServerIsNoProgram) {
  const auto family = Family::start(/*in_namespace=*/false);
  watch(kStuckAtOnce);
  devices_.set(0, used_by({::getpid(), family->child, 1}));
  clear(0);
  EXPECT_THAT(heard(1), ElementsAre("cleared 0"));
}

TEST_F(WatchTest, MemoryThatNobodyHasKeepsIt) {
  devices_.set(0, used_by({}, 700 * kMib));
  watch(kStuckAtOnce);
  devices_.set(0, used_by({}, (700 + 513) * kMib));
  clear(0);
  EXPECT_THAT(heard(1), ElementsAre("stuck 0: 513 MiB of its memory are in use, and no process has them"));
  devices_.set(0, used_by({}, (700 + 512) * kMib));
  EXPECT_EQ(heard(2).back(), "cleared 0") << "so much comes and goes";
}

TEST_F(WatchTest, MemoryOfThoseThatAreThereIsNotMissing) {
  watch(kStuckAtOnce);
  DeviceState state = used_by({::getpid()}, 5000 * kMib);
  state.processes[0].memory_bytes = 4600 * kMib;
  devices_.set(0, state);
  clear(0);
  EXPECT_THAT(heard(1), ElementsAre("cleared 0"));
  state.processes[0].memory_bytes = std::nullopt;  // then nobody can say what is missing
  devices_.set(0, state);
  clear(0);
  EXPECT_EQ(heard(2).back(), "cleared 0");
}

TEST_F(WatchTest, WhereItIsNotKnownWhatAnUnusedDeviceHasInUseNoMemoryIsMissed) {
  devices_.refuse("the driver is busy");
  watch(kStuckAtOnce);
  devices_.refuse("");
  devices_.set(0, used_by({}, 5000 * kMib));
  clear(0);
  EXPECT_THAT(heard(1), ElementsAre("cleared 0"));
}

TEST_F(WatchTest, ADeviceThatCannotBeLookedAtIsNotClear) {
  watch(kStuckAtOnce);
  devices_.refuse("the GPU has fallen off the bus");
  clear(0);
  EXPECT_THAT(heard(1), ElementsAre("stuck 0: the GPU has fallen off the bus"));
  devices_.refuse("");
  EXPECT_EQ(heard(2).back(), "cleared 0");
}

TEST_F(WatchTest, StatesAreThoseOfTheLastRound) {
  devices_.set(0, used_by({}, 7));
  watch();
  ASSERT_TRUE(watch_->state(0));
  EXPECT_EQ(watch_->state(0)->memory_used_bytes, 7u) << "from the beginning";
  EXPECT_FALSE(watch_->state(5));
  devices_.set(0, used_by({kNobody}, 8));
  const SteadyTime end = Clock::system().now() + kPatience;
  while (watch_->state(0)->memory_used_bytes != 8 && Clock::system().now() < end) std::this_thread::yield();
  ASSERT_EQ(watch_->state(0)->processes.size(), 1u);
  devices_.refuse("not now");
  while (watch_->state(0) && Clock::system().now() < end) std::this_thread::yield();
  EXPECT_FALSE(watch_->state(0));
  devices_.refuse("");
  while (!watch_->state(0) && Clock::system().now() < end) std::this_thread::yield();
  EXPECT_TRUE(watch_->state(0));
}

TEST_F(WatchTest, NobodyIsCalledOnceItHasStopped) {
  watch(kStuckAtOnce);
  devices_.set(0, used_by({kNobody}));
  clear(0);
  heard(1);
  watch_->stop();
  devices_.set(0, {});
  clear(1);
  const int looks = devices_.looks();
  watch_->stop();
  watch_.reset();
  EXPECT_EQ(devices_.looks(), looks);
  EXPECT_EQ(heard(1).size(), 1u);
}

}  // namespace
}  // namespace kcoral::devices
