// The state of a device as NVML knows it. NVML is loaded and initialised once, at the first question.
#include <dlfcn.h>

#include "devices/nvml_abi.h"
#include "executor/timing/timing.h"

namespace abi = kcoral::nvml_abi;

namespace {

constexpr int32_t kUnknown = -1;
constexpr unsigned kProcessesMax = 256;

/// A function of NVML's that may be missing: then it answers with an error.
template <typename Signature>
struct Function {
  Signature* pointer = nullptr;
  template <typename... Arguments>
  abi::Return operator()(Arguments... arguments) const {
    return pointer != nullptr ? pointer(arguments...) : -1;
  }
  void take(void* library, const char* name) { pointer = reinterpret_cast<Signature*>(dlsym(library, name)); }
};

struct Nvml {
  bool was_tried = false;
  bool works = false;
  Function<abi::Init> init;
  Function<abi::DeviceByPciBusId> device_by_pci_bus_id;
  Function<abi::DeviceClock> clock;
  Function<abi::DeviceTemperature> temperature;
  Function<abi::DeviceClockReasons> clock_event_reasons;
  Function<abi::DeviceProcesses> compute_processes;

  bool prepare() {
    if (was_tried) return works;
    was_tried = true;
    void* library = dlopen(abi::kLibraryName, RTLD_NOW | RTLD_LOCAL);
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
    works = init() == abi::kSuccess;
    return works;
  }
};

Nvml nvml;

int32_t count_processes(abi::Device device) {
  abi::Process processes[kProcessesMax];
  unsigned count = kProcessesMax;
  const abi::Return result = nvml.compute_processes(device, &count, processes);
  return result == abi::kSuccess || result == abi::kInsufficientSize ? static_cast<int32_t>(count) : kUnknown;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void kcoral_device_state(const char* pci_bus_id,
                                                                           kcoral_device_facts* facts) {
  *facts = {kUnknown, kUnknown, kUnknown, 0, 0};
  abi::Device device = nullptr;
  if (!nvml.prepare() || nvml.device_by_pci_bus_id(pci_bus_id, &device) != abi::kSuccess) return;
  unsigned value = 0;
  if (nvml.clock(device, abi::kClockSm, &value) == abi::kSuccess) facts->sm_clock_mhz = static_cast<int32_t>(value);
  if (nvml.temperature(device, abi::kTemperatureGpu, &value) == abi::kSuccess)
    facts->temperature_c = static_cast<int32_t>(value);
  unsigned long long reasons = 0;
  if (nvml.clock_event_reasons(device, &reasons) == abi::kSuccess) {
    facts->has_clock_event_reasons = 1;
    facts->clock_event_reasons = reasons;
  }
  facts->processes = count_processes(device);
}
