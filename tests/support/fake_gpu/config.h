// What the fakes are told: which devices there are, and which faults to play.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kcoral::fake_gpu {

struct Process {
  unsigned pid = 0;
  std::optional<uint64_t> bytes;  // none: the driver does not tell
};

struct DeviceFacts {
  std::string name = "NVIDIA Fake";
  int capability_major = 9;
  int capability_minor = 0;
  unsigned minor = 0;
  uint64_t bytes = uint64_t{8} << 30;
  uint64_t used_bytes = uint64_t{500} << 20;  // beside what processes hold
  std::vector<Process> processes;             // beside those that have a context of the fake driver
};

/// As FAKE_GPU_CONFIG says now; where it is not set as many as FAKE_GPU_DEVICES says, with three processes each.
std::vector<DeviceFacts> devices();

/// Whether there are nodes in /dev, through which a context of one process shows in another one's NVML.
bool has_nodes();
std::string node_of(const DeviceFacts& device);

std::string pci_bus_id(size_t device);

}  // namespace kcoral::fake_gpu
