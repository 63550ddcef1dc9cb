// Which GPUs a server uses, and which of them each of its slots sees.
//
// It promises that what was chosen is of one architecture, has what CUDA needs in /dev, and is used by nobody; what is
// not is refused with what to do about it. Nothing is changed on the machine. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "devices/devices.h"
#include "devices/process_table.h"
#include "server/options.h"

namespace kcoral::server {

struct DeviceChoice {
  std::vector<devices::Device> devices;  // none on a CPU server; by id
  std::vector<std::vector<int>> slots;   // of each slot, the ids of those that its programs see
};

/// What is looked at besides the devices.
struct DeviceSurroundings {
  const Clock& clock = Clock::system();
  const devices::ProcessTable& processes = devices::ProcessTable::system();
  std::function<bool(const std::string& path)> exists;        // a file
  std::function<void(std::chrono::milliseconds time)> wait;   // lets time pass
  std::function<void(const std::string& what)> say_what_for;  // what is waited for; a line for the log
  std::optional<std::string> visible_devices = {};            // CUDA_VISIBLE_DEVICES: chooses where --gpus does not

  static DeviceSurroundings real();
};

/// The machine's; null where there is none, or the server is to run without one. kEnvironment: there is an NVIDIA
/// driver that does not work, or no GPU where one was asked for.
Result<std::unique_ptr<devices::Devices>> open_devices(const ServerOptions& options);

/// `all`: what open_devices gave. Waits up to limits::kKillWait for whoever uses a device: the processes of an earlier
/// server take a moment to leave theirs.
Result<DeviceChoice> choose_devices(const ServerOptions& options, const devices::Devices* all,
                                    const DeviceSurroundings& surroundings = DeviceSurroundings::real());

}  // namespace kcoral::server
