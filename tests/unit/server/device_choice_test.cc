#include "server/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "devices/fake_devices.h"
#include "schema/limits.h"

namespace kcoral::server {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class DeviceChoiceTest : public testing::Test {
 protected:
  DeviceChoiceTest() {
    options_.slots_per_gpu = 2;
    surroundings_.exists = [this](const std::string& path) { return !missing_.contains(path); };
    surroundings_.wait = [this](std::chrono::milliseconds time) {
      clock_.advance(time);
      if (on_wait_) on_wait_();
    };
    surroundings_.say_what_for = [this](const std::string& what) { said_.push_back(what); };
  }

  Result<DeviceChoice> choose(const devices::Devices* all) { return choose_devices(options_, all, surroundings_); }
  std::vector<int> ids(const DeviceChoice& choice) {
    std::vector<int> ids;
    for (const auto& device : choice.devices) ids.push_back(device.id);
    return ids;
  }
  std::string complaint() {
    const auto choice = choose(&devices_);
    if (choice) return "nothing";
    EXPECT_EQ(choice.error().kind, ErrorKind::kEnvironment);
    return choice.error().message;
  }
  void in_use(int device, std::optional<pid_t> pid) {
    devices::DeviceState state;
    if (pid) state.processes.push_back({*pid, {}});
    devices_.set(device, state);
  }

  ServerOptions options_;
  devices::FakeDevices devices_{3};
  FakeClock clock_;
  devices::FakeProcessTable table_;
  DeviceSurroundings surroundings_{clock_, table_, {}, {}, {}};
  std::set<std::string> missing_;
  std::function<void()> on_wait_;
  std::vector<std::string> said_;
};

TEST_F(DeviceChoiceTest, ACpuServerHasSlotsWithoutDevices) {
  options_.slots = 2;
  options_.slots_given = true;
  const auto choice = choose(nullptr);
  ASSERT_TRUE(choice);
  EXPECT_THAT(choice->devices, IsEmpty());
  EXPECT_THAT(choice->slots, ElementsAre(IsEmpty(), IsEmpty()));
}

TEST_F(DeviceChoiceTest, AllDevicesAreUsedAndNeighbouringSlotsSeeDifferentOnes) {
  const auto choice = choose(&devices_);
  ASSERT_TRUE(choice);
  EXPECT_THAT(ids(*choice), ElementsAre(0, 1, 2));
  EXPECT_THAT(choice->slots, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(0), ElementsAre(1),
                                         ElementsAre(2), ElementsAre(0, 1, 2)));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(DeviceChoiceTest, OneDeviceHasNoSlotForSeveral) {
  options_.gpus = {1};
  const auto choice = choose(&devices_);
  ASSERT_TRUE(choice);
  EXPECT_THAT(ids(*choice), ElementsAre(1));
  EXPECT_THAT(choice->slots, ElementsAre(ElementsAre(1), ElementsAre(1)));
}

TEST_F(DeviceChoiceTest, WhatCudaMayUseIsUsedUnlessTheServerIsToldOtherwise) {
  for (const char* names : {"2,0", "GPU-2,GPU-0", "2,GPU-0,2"}) {
    surroundings_.visible_devices = names;
    const auto choice = choose(&devices_);
    ASSERT_TRUE(choice) << names;
    EXPECT_THAT(ids(*choice), ElementsAre(0, 2)) << names;
  }
  options_.gpus = {1};
  const auto choice = choose(&devices_);
  ASSERT_TRUE(choice);
  EXPECT_THAT(ids(*choice), ElementsAre(1));
}

TEST_F(DeviceChoiceTest, WhatCudaMayUseMustBeHere) {
  for (const char* name : {"3", "-1", "GPU-7", "GPU-", "MIG-2", "GPU 0", "NoDevFiles"}) {
    surroundings_.visible_devices = name;
    EXPECT_THAT(complaint(), AllOf(HasSubstr(name), HasSubstr("0 to 2"), HasSubstr("--gpus"))) << name;
  }
  surroundings_.visible_devices = "";
  EXPECT_THAT(complaint(), AllOf(HasSubstr("CUDA_VISIBLE_DEVICES is empty"), HasSubstr("--device cpu")));
}

TEST_F(DeviceChoiceTest, ACpuServerHasNoWorkersForGpus) {
  options_.slots_per_gpu_given = true;
  const auto choice = choose(nullptr);
  ASSERT_FALSE(choice);
  EXPECT_EQ(choice.error().kind, ErrorKind::kEnvironment);
  EXPECT_THAT(choice.error().message, AllOf(HasSubstr("no NVIDIA GPU"), HasSubstr("--num-workers")));
}

TEST_F(DeviceChoiceTest, OnlyWhatWasAskedForIsLookedAt) {
  options_.gpus = {0, 2};
  devices_.mutable_list()[1].arch = "sm_80";
  missing_ = {"/dev/nvidia1"};
  in_use(1, 4711);
  const auto choice = choose(&devices_);
  ASSERT_TRUE(choice) << choice.error().message;
  EXPECT_THAT(ids(*choice), ElementsAre(0, 2));
  EXPECT_THAT(choice->slots.back(), ElementsAre(0, 2));
}

TEST_F(DeviceChoiceTest, ADeviceThatIsNotThereIsRefused) {
  options_.gpus = {0, 3};
  EXPECT_EQ(complaint(), "--gpus: there is no GPU 3; this machine has 0 to 2");
}

TEST_F(DeviceChoiceTest, SettingsOfACpuServerAreRefused) {
  options_.slots_given = true;
  EXPECT_THAT(complaint(), AllOf(HasSubstr("--device cpu"), HasSubstr("--workers-per-gpu")));
}

TEST_F(DeviceChoiceTest, DevicesOfSeveralArchitecturesAreRefused) {
  devices_.mutable_list()[2].arch = "sm_100a";
  EXPECT_THAT(complaint(), StartsWith("GPU 0 is sm_90a and GPU 2 is sm_100a: "));
}

TEST_F(DeviceChoiceTest, AMissingNodeIsNamedWithWhatMakesIt) {
  devices_.mutable_list()[2].node = "/dev/nvidia12";
  missing_ = {"/dev/nvidia12"};
  EXPECT_THAT(complaint(), AllOf(StartsWith("GPU 2: /dev/nvidia12 is missing"), HasSubstr("`nvidia-modprobe -c 12`")));
  missing_ = {"/dev/nvidia-uvm"};
  EXPECT_THAT(complaint(), AllOf(StartsWith("/dev/nvidia-uvm is missing"), HasSubstr("`nvidia-modprobe -u -c 0`")));
  missing_ = {"/dev/nvidiactl"};
  EXPECT_THAT(complaint(), AllOf(StartsWith("/dev/nvidiactl is missing"), HasSubstr("`nvidia-modprobe -c 255`")));
}

TEST_F(DeviceChoiceTest, WhoeverLeavesADeviceIsWaitedForAndNamed) {
  in_use(1, 4711);
  on_wait_ = [this, looks = 0]() mutable {
    if (++looks == 5) in_use(1, std::nullopt);
  };
  EXPECT_TRUE(choose(&devices_));
  EXPECT_THAT(said_, ElementsAre("waiting for process 4711 to leave GPU 1 (for at most 10 s)"));
}

TEST_F(DeviceChoiceTest, WhoeverStaysIsToldAfterTenSecondsForAllDevicesTogether) {
  const SteadyTime start = clock_.now();
  in_use(0, 1000);
  in_use(2, 4711);
  table_.processes[4711] = {1, 1, "python3"};
  on_wait_ = [&] {
    if (clock_.now() - start >= 6s) in_use(0, std::nullopt);
  };
  EXPECT_THAT(complaint(), StartsWith("GPU 2 is in use by process 4711 (python3): kcoral needs its GPUs for itself"));
  EXPECT_EQ(clock_.now() - start, 10s);
}

TEST_F(DeviceChoiceTest, InAContainerWhoeverIsNotInItIsToldAsSuch) {
  table_.whole_machine = false;
  in_use(0, 4711);
  EXPECT_THAT(complaint(), HasSubstr("process 4711, which lives outside of this container"));
}

TEST_F(DeviceChoiceTest, ADriverThatDoesNotAnswerIsNamedWithTheDevice) {
  devices_.fail_with(Error{ErrorKind::kEnvironment, "the NVIDIA driver is asleep"});
  EXPECT_EQ(complaint(), "GPU 0: the NVIDIA driver is asleep");
}

TEST_F(DeviceChoiceTest, ACpuServerOpensNoDevices) {
  options_.device = ServerOptions::DeviceMode::kCpu;
  const auto opened = open_devices(options_);
  ASSERT_TRUE(opened);
  EXPECT_EQ(*opened, nullptr);
}

}  // namespace
}  // namespace kcoral::server
