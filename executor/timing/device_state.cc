// The state of a device as NVML knows it. NVML is loaded and initialised once, at the first question.
#include <dlfcn.h>

#include "executor/timing/timing.h"

namespace {

// NVML's binary interface, by hand as in cupti_abi.h. These names have had these signatures since driver 450 (the
// versioned ones: 510).
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInsufficientSize = 7;
constexpr int kClockSm = 1;
constexpr int kSensorGpu = 0;
constexpr int32_t kUnknown = -1;
constexpr unsigned kProcessesMax = 256;

using NvmlDevice = void*;
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_memory_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

/// A function of NVML's that may be missing: then it answers with an error.
template <typename... Arguments>
struct Function {
  Result (*pointer)(Arguments...) = nullptr;
  Result operator()(Arguments... arguments) const { return pointer != nullptr ? pointer(arguments...) : -1; }
  void take(void* library, const char* name) {
    pointer = reinterpret_cast<Result (*)(Arguments...)>(dlsym(library, name));
  }
};

struct Nvml {
  bool was_tried = false;
  bool works = false;
  Function<> init;
  Function<const char*, NvmlDevice*> device_by_pci_bus_id;
  Function<NvmlDevice, int, unsigned*> clock;
  Function<NvmlDevice, int, unsigned*> temperature;
  Function<NvmlDevice, unsigned long long*> clock_event_reasons;
  Function<NvmlDevice, unsigned*, ProcessInfo*> compute_processes;

  bool prepare() {
    if (was_tried) return works;
    was_tried = true;
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    init.take(library, "nvmlInit_v2");
    device_by_pci_bus_id.take(library, "nvmlDeviceGetHandleByPciBusId_v2");
    clock.take(library, "nvmlDeviceGetClockInfo");
    temperature.take(library, "nvmlDeviceGetTemperature");
    clock_event_reasons.take(library, "nvmlDeviceGetCurrentClocksEventReasons");
    if (clock_event_reasons.pointer == nullptr) {
      clock_event_reasons.take(library, "nvmlDeviceGetCurrentClocksThrottleReasons");  // its name before driver 535
    }
    compute_processes.take(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    works = init() == kSuccess;
    return works;
  }
};

Nvml nvml;

int32_t count_processes(NvmlDevice device) {
  ProcessInfo processes[kProcessesMax];
  unsigned count = kProcessesMax;
  const Result result = nvml.compute_processes(device, &count, processes);
  return result == kSuccess || result == kInsufficientSize ? static_cast<int32_t>(count) : kUnknown;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void kcoral_device_state(const char* pci_bus_id,
                                                                           kcoral_device_facts* facts) {
  *facts = {kUnknown, kUnknown, kUnknown, 0, 0};
  NvmlDevice device = nullptr;
  if (!nvml.prepare() || nvml.device_by_pci_bus_id(pci_bus_id, &device) != kSuccess) return;
  unsigned value = 0;
  if (nvml.clock(device, kClockSm, &value) == kSuccess) facts->sm_clock_mhz = static_cast<int32_t>(value);
  if (nvml.temperature(device, kSensorGpu, &value) == kSuccess) facts->temperature_c = static_cast<int32_t>(value);
  unsigned long long reasons = 0;
  if (nvml.clock_event_reasons(device, &reasons) == kSuccess) {
    facts->has_clock_event_reasons = 1;
    facts->clock_event_reasons = reasons;
  }
  facts->processes = count_processes(device);
}
