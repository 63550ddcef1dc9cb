// Devices and processes that are what a test says.
//
// FakeDevices can be in use by whatever processes, lack memory that nobody has, and fail to answer; it counts how often
// it was looked at. FakeProcessTable can be that of a container, whose numbers are not those of the driver.
// FakeDevices is thread-safe, FakeProcessTable may change only while nobody reads it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "devices/devices.h"
#include "devices/process_table.h"

namespace kcoral::devices {

class FakeDevices final : public Devices {
 public:
  /// That many, all alike, with no process and 1 GiB in use by nobody.
  explicit FakeDevices(int count, const std::string& arch = "sm_90a") {
    for (int id = 0; id < count; ++id) {
      const std::string number = std::to_string(id);
      list_.push_back({id, "NVIDIA Fake", "GPU-" + number, arch, "/dev/nvidia" + number, uint64_t{80} << 30});
      states_[id].memory_used_bytes = uint64_t{1} << 30;
    }
  }

  /// For tests of what is listed. Requires: nobody else uses this yet.
  std::vector<Device>& mutable_list() { return list_; }
  void set(int id, DeviceState state) {
    const MutexLock lock(mutex_);
    states_[id] = std::move(state);
  }
  /// From now on every look fails with this; none: they succeed again.
  void fail_with(std::optional<Error> error) {
    const MutexLock lock(mutex_);
    error_ = std::move(error);
  }
  int looks() const {
    const MutexLock lock(mutex_);
    return looks_;
  }

  const std::vector<Device>& list() const override { return list_; }
  const std::string& driver_version() const override { return driver_version_; }
  Result<DeviceState> look(int id) const override {
    const MutexLock lock(mutex_);
    ++looks_;
    if (error_) return fail(*error_);
    return states_.at(id);
  }

 private:
  std::vector<Device> list_;
  const std::string driver_version_ = "999.1";
  mutable Mutex mutex_;
  std::map<int, DeviceState> states_ KCORAL_GUARDED_BY(mutex_);
  std::optional<Error> error_ KCORAL_GUARDED_BY(mutex_);
  mutable int looks_ KCORAL_GUARDED_BY(mutex_) = 0;
};

class FakeProcessTable final : public ProcessTable {
 public:
  std::map<pid_t, Process> processes;
  size_t depth = 1;
  bool whole_machine = true;

  std::optional<Process> find(pid_t pid) const override {
    const auto found = processes.find(pid);
    return found == processes.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<pid_t> list() const override {
    std::vector<pid_t> pids;
    for (const auto& [pid, ignored] : processes) pids.push_back(pid);
    return pids;
  }
  size_t own_depth() const override { return depth; }
  bool is_whole_machine() const override { return whole_machine; }
};

}  // namespace kcoral::devices
