// The devices as NVML describes them, on the fake one (tests/support/fake_gpu).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "devices/devices.h"

namespace kcoral::devices {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kMib = uint64_t{1} << 20;

class NvmlTest : public testing::Test {
 protected:
  NvmlTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "kcoral-nvml-XXXXXX").string();
    KCORAL_CHECK(::mkdtemp(pattern.data()) != nullptr);
    directory_ = pattern;
    ::setenv("FAKE_GPU_CONFIG", (directory_ + "/config").c_str(), 1);
  }
  ~NvmlTest() override {
    ::unsetenv("FAKE_GPU_CONFIG");
    std::filesystem::remove_all(directory_);
  }

  void tell(const std::string& config) { std::ofstream(directory_ + "/config") << config; }
  std::unique_ptr<Devices> open(const std::string& config) {
    tell(config);
    auto opened = open_devices();
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }

  std::string directory_;
};

TEST_F(NvmlTest, ListsEveryDeviceInItsOrder) {
  const auto devices = open("device minor=3 mib=81920 name=NVIDIA H200\ndevice minor=0 arch=8.9 mib=24000 name=L4\n");
  ASSERT_EQ(devices->list().size(), 2u);
  const Device& first = devices->list()[0];
  EXPECT_EQ(first.id, 0);
  EXPECT_EQ(first.name, "NVIDIA H200");
  EXPECT_EQ(first.uuid, "GPU-fake-0");
  EXPECT_EQ(first.node, "/dev/nvidia3") << "a node has the minor's number, not the device's";
  EXPECT_EQ(first.memory_bytes, 81920 * kMib);
  const Device& second = devices->list()[1];
  EXPECT_EQ(second.id, 1);
  EXPECT_EQ(second.node, "/dev/nvidia0");
  EXPECT_EQ(second.arch, "sm_89");
  EXPECT_EQ(devices->driver_version(), "999.1");
}

TEST_F(NvmlTest, ArchitecturesHaveATrailingAFromNineUp) {
  const auto devices = open("device arch=7.5\ndevice arch=8.0\ndevice arch=9.0\ndevice arch=10.0\ndevice arch=12.1\n");
  std::vector<std::string> found;
  for (const Device& device : devices->list()) found.push_back(device.arch);
  EXPECT_THAT(found, ElementsAre("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_121a"));
}

TEST_F(NvmlTest, SeesWhatGoesOnNow) {
  const auto devices = open("device used_mib=500\ndevice used_mib=7\n");
  const auto before = devices->look(0);
  ASSERT_TRUE(before) << before.error().message;
  EXPECT_TRUE(before->processes.empty());
  EXPECT_EQ(before->memory_used_bytes, 500 * kMib);
  EXPECT_EQ(before->utilisation_percent, 37u);
  EXPECT_EQ(before->temperature_celsius, 41u);
  EXPECT_EQ(before->sm_clock_mhz, 1980u);
  tell("device used_mib=500\ndevice used_mib=7\nprocess 0 4242 100\nprocess 0 4243 ?\nprocess 1 4244 1\n");
  const auto after = devices->look(0);
  ASSERT_EQ(after->processes.size(), 2u);
  EXPECT_EQ(after->processes[0].pid, 4242);
  EXPECT_EQ(after->processes[0].memory_bytes, 100 * kMib);
  EXPECT_EQ(after->processes[1].memory_bytes, std::nullopt);
  EXPECT_EQ(after->memory_used_bytes, 600 * kMib);
  EXPECT_EQ(devices->look(1)->processes.size(), 1u);
}

TEST_F(NvmlTest, ProcessesMayBeMany) {
  std::string config = "device\n";
  for (int pid = 1000; pid < 1100; ++pid) config += fmt::format("process 0 {} 1\n", pid);
  const auto devices = open(config);
  const auto state = devices->look(0);
  ASSERT_EQ(state->processes.size(), 100u);
  EXPECT_EQ(state->processes.back().pid, 1099);
}

TEST_F(NvmlTest, WhatTheDriverDoesNotTellIsNotThere) {
  const auto devices = open("device\n");
  tell("device\nfault NVML_UTILISATION_ERROR 3\nfault NVML_TEMPERATURE_ERROR 3\nfault NVML_CLOCK_ERROR 3\n");
  const auto state = devices->look(0);
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(state->utilisation_percent, std::nullopt);
  EXPECT_EQ(state->temperature_celsius, std::nullopt);
  EXPECT_EQ(state->sm_clock_mhz, std::nullopt);
}

TEST_F(NvmlTest, ALookThatFailsSaysWhatTheDriverSaid) {
  const auto devices = open("device\n");
  for (const auto& [fault, call] : {std::pair{"NVML_MEMORY_ERROR", "nvmlDeviceGetMemoryInfo"},
                                    std::pair{"NVML_PROCESSES_ERROR", "nvmlDeviceGetComputeRunningProcesses"}}) {
    tell(fmt::format("device\nfault {} 999\n", fault));
    const auto state = devices->look(0);
    ASSERT_FALSE(state) << fault;
    EXPECT_EQ(state.error().kind, ErrorKind::kEnvironment);
    EXPECT_THAT(state.error().message, testing::AllOf(HasSubstr(call), HasSubstr("Unknown Error")));
  }
}

TEST_F(NvmlTest, WithoutADriverOrADeviceThereIsNothing) {
  EXPECT_EQ(open(""), nullptr);
  for (const int not_loaded_or_not_found : {9, 12}) {
    EXPECT_EQ(open(fmt::format("device\nfault NVML_ERROR {}\n", not_loaded_or_not_found)), nullptr);
  }
}

TEST_F(NvmlTest, ADriverThatDoesNotWorkIsTheEnvironmentsFailure) {
  for (const char* fault : {"NVML_ERROR", "NVML_MEMORY_ERROR"}) {
    tell(fmt::format("device\nfault {} 999\n", fault));
    const auto opened = open_devices();
    ASSERT_FALSE(opened) << fault;
    EXPECT_EQ(opened.error().kind, ErrorKind::kEnvironment);
    EXPECT_THAT(opened.error().message, HasSubstr("Unknown Error"));
  }
}

TEST(SharedDeviceNodes, AreThoseThatAreThere) {
  for (const std::string& node : shared_device_nodes()) EXPECT_TRUE(std::filesystem::exists(node)) << node;
}

}  // namespace
}  // namespace kcoral::devices
