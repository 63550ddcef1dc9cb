// Devices whose states the test sets, and that can refuse to be looked at. Thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "devices/devices.h"

namespace kcoral::devices {

class FakeDevices final : public Devices {
 public:
  explicit FakeDevices(int count) : list_(static_cast<size_t>(count)) {
    for (int id = 0; id < count; ++id) list_[static_cast<size_t>(id)].id = id;
  }

  void set(int id, DeviceState state) {
    const MutexLock lock(mutex_);
    states_[id] = std::move(state);
  }
  /// Every look fails with this; empty: none.
  void refuse(std::string message) {
    const MutexLock lock(mutex_);
    refusal_ = std::move(message);
  }
  int looks() const {
    const MutexLock lock(mutex_);
    return looks_;
  }

  const std::vector<Device>& list() const override { return list_; }
  const std::string& driver_version() const override { return version_; }
  Result<DeviceState> look(int id) const override {
    const MutexLock lock(mutex_);
    ++looks_;
    if (!refusal_.empty()) return fail(ErrorKind::kEnvironment, "{}", refusal_);
    const auto found = states_.find(id);
    return found == states_.end() ? DeviceState() : found->second;
  }

 private:
  std::vector<Device> list_;
  std::string version_ = "999.1";
  mutable Mutex mutex_;
  std::map<int, DeviceState> states_ KCORAL_GUARDED_BY(mutex_);
  std::string refusal_ KCORAL_GUARDED_BY(mutex_);
  mutable int looks_ KCORAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kcoral::devices
