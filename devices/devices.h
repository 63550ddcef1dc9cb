// The GPUs of this machine: which there are, and what goes on on each.
//
// Devices promises that what it lists does not change while the process lives. It is thread-safe. `look` asks the
// driver: microseconds on an idle device, about 100 ms while somebody makes or ends a context, so it is not for a
// loop's thread. Nothing here starts CUDA or changes a setting of the card.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace kcoral::devices {

struct Device {
  int id = 0;  // as NVML and nvidia-smi number it
  std::string name;
  std::string uuid;
  // "sm_90a": with a trailing `a` from compute capability 9.0 up, as programs are to compile for it (contract section
  // 8; the runtime, which has no NVML, tells it the same way in _tirx.py).
  std::string arch;
  std::string node;  // "/dev/nvidia0"
  uint64_t memory_bytes = 0;
};

struct DeviceProcess {
  pid_t pid = 0;
  std::optional<uint64_t> memory_bytes;  // none where the driver does not tell; never 0
};

struct DeviceState {
  std::vector<DeviceProcess> processes;  // those with a compute context
  uint64_t memory_used_bytes = 0;        // the driver's own share included
  std::optional<unsigned> utilisation_percent;
  std::optional<unsigned> temperature_celsius;
  std::optional<unsigned> sm_clock_mhz;
};

class Devices {
 public:
  virtual ~Devices() = default;
  virtual const std::vector<Device>& list() const = 0;
  virtual const std::string& driver_version() const = 0;
  /// Requires: `id` is one of the list's.
  virtual Result<DeviceState> look(int id) const = 0;
};

/// Through NVML, loaded when this is called; null where the machine has none or lists no device. kEnvironment: there is
/// one, and it does not work.
Result<std::unique_ptr<Devices>> open_devices();

/// What a process needs besides the node of its device.
std::vector<std::string> shared_device_nodes();

}  // namespace kcoral::devices
