// libnvidia-ml.so.1: the one device, warm, at 1,980 MHz, held back by power and by being idle, with three processes.
#include <cstring>

#include "tests/support/fake_gpu/fake_gpu.h"

extern "C" {

struct fake_nvml_process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2() { return static_cast<int>(fake_gpu_fault("NVML_ERROR")); }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  static char the_device;
  *device = &the_device;
  return strcmp(id, "00000000:1A:00.0") == 0 ? 0 : 6;
}

int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
  *mhz = kind == 1 ? 1980 : 1;
  return 0;
}

int nvmlDeviceGetTemperature(void*, int sensor, unsigned* degrees) {
  *degrees = 41;
  return sensor;
}

int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* reasons) {
  *reasons = 0x1 | 0x4;
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, fake_nvml_process* processes) {
  for (unsigned i = 0; i < 3 && i < *count; ++i) processes[i] = {1000 + i, 1 << 20, 0, 0};
  *count = 3;
  return 0;
}
}
