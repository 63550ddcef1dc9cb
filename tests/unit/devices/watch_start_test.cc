// How a watch begins; what it does then by and by is Clearings' work, whose tests move time.
#include <gtest/gtest.h>

#include <future>

#include "devices/fake_devices.h"
#include "devices/watch.h"
#include "schema/limits.h"

namespace kcoral::devices {
namespace {

constexpr uint64_t kMiB = limits::kMiB;

TEST(WatchStart, FailsWhereTheDriverDoesNotTellWhatAnUnusedDeviceHolds) {
  FakeDevices devices(2);
  devices.fail_with(Error{ErrorKind::kEnvironment, "the NVIDIA driver is asleep"});
  const auto watch = Watch::create(devices, {1});
  ASSERT_FALSE(watch);
  EXPECT_EQ(watch.error().kind, ErrorKind::kEnvironment);
  EXPECT_EQ(watch.error().message, "GPU 1: the NVIDIA driver is asleep");
}

TEST(WatchStart, KnowsTheStateOfWhatItLooksAtAndOfNothingElse) {
  FakeDevices devices(2);
  auto watch = Watch::create(devices, {1});
  ASSERT_TRUE(watch);
  ASSERT_TRUE((*watch)->state(1));
  EXPECT_EQ((*watch)->state(1)->memory_used_bytes, 1024 * kMiB);
  EXPECT_FALSE((*watch)->state(0));
}

TEST(WatchStart, WhatNoProcessHasAtTheBeginningIsNobodysLeft) {
  FakeDevices devices(1);
  devices.set(0, {{{1, 600 * kMiB}}, 4600 * kMiB, {}, {}, {}});  // pid 1 lives beside us
  auto watch = Watch::create(devices, {0});
  ASSERT_TRUE(watch);
  devices.set(0, {{}, 4000 * kMiB, {}, {}, {}});
  std::promise<void> cleared;
  (*watch)->when_clear(0, {}, {[&] { cleared.set_value(); }, [](const std::string&) {}});
  cleared.get_future().wait();
}

TEST(WatchStart, NothingIsSaidAfterItWasStopped) {
  FakeDevices devices(1);
  FakeProcessTable table;
  devices.set(0, {{{777, 600 * kMiB}}, 1624 * kMiB, {}, {}, {}});
  auto watch = Watch::create(devices, {0}, table);
  ASSERT_TRUE(watch);
  bool said = false;
  (*watch)->when_clear(0, {}, {[&] { said = true; }, [&](const std::string&) { said = true; }});
  (*watch)->stop();
  devices.set(0, {{}, 1024 * kMiB, {}, {}, {}});
  (*watch)->stop();
  EXPECT_FALSE(said);
}

}  // namespace
}  // namespace kcoral::devices
