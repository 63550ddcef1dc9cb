// The few pieces of NVML's binary interface that are used, declared by hand, so that a build needs no CUDA toolkit and
// programs run where there is no driver: by devices/nvml.cc, and by executor/timing/device_state.cc, which links
// nothing but libc.
//
// These functions have had these signatures since driver 450 (the versioned ones: 510).
// tests/unit/timing/nvml_abi_test.cc holds all of it against the real header where that is installed.
#pragma once

namespace kcoral::nvml_abi {

inline constexpr const char* kLibraryName = "libnvidia-ml.so.1";

// --- Results ---

using Return = int;
inline constexpr Return kSuccess = 0;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kDriverNotLoaded = 9;
inline constexpr Return kLibraryNotFound = 12;

// --- What functions take and fill in ---

using Device = void*;
inline constexpr int kClockSm = 1;
inline constexpr int kTemperatureGpu = 0;

struct Memory {
  unsigned long long total, free, used;  // bytes
};

struct Utilisation {
  unsigned gpu, memory;  // percent
};

/// nvmlProcessInfo_t, of the functions for processes from _v2 on.
struct Process {
  unsigned pid;
  unsigned long long memory_bytes;
  unsigned gpu_instance, compute_instance;
};
inline constexpr unsigned long long kMemoryNotAvailable = ~0ULL;

// --- Functions, each with its name in the library ---

using Init = Return();                                                // nvmlInit_v2
using Shutdown = Return();                                            // nvmlShutdown
using ErrorString = const char*(Return);                              // nvmlErrorString
using SystemDriverVersion = Return(char* text, unsigned size);        // nvmlSystemGetDriverVersion
using DeviceCount = Return(unsigned*);                                // nvmlDeviceGetCount_v2
using DeviceByIndex = Return(unsigned index, Device*);                // nvmlDeviceGetHandleByIndex_v2
using DeviceByPciBusId = Return(const char* id, Device*);             // nvmlDeviceGetHandleByPciBusId_v2
using DeviceName = Return(Device, char* text, unsigned size);         // nvmlDeviceGetName
using DeviceUuid = Return(Device, char* text, unsigned size);         // nvmlDeviceGetUUID
using DeviceMinorNumber = Return(Device, unsigned*);                  // nvmlDeviceGetMinorNumber
using DeviceCapability = Return(Device, int* major, int* minor);      // nvmlDeviceGetCudaComputeCapability
using DeviceMemory = Return(Device, Memory*);                         // nvmlDeviceGetMemoryInfo
using DeviceUtilisation = Return(Device, Utilisation*);               // nvmlDeviceGetUtilizationRates
using DeviceTemperature = Return(Device, int sensor, unsigned*);      // nvmlDeviceGetTemperature
using DeviceClock = Return(Device, int clock, unsigned* mhz);         // nvmlDeviceGetClockInfo
using DeviceProcesses = Return(Device, unsigned* count, Process*);    // nvmlDeviceGetComputeRunningProcesses_v3
using DeviceClockReasons = Return(Device, unsigned long long* bits);  // nvmlDeviceGetCurrentClocksEventReasons, before
                                                                      // driver 535 ...ClocksThrottleReasons

}  // namespace kcoral::nvml_abi
