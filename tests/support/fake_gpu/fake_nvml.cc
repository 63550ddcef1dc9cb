// libnvidia-ml.so.1: the devices of the configuration, warm, at 1,980 MHz, held back by power and by being idle.
//
// A process that has a context of the fake driver holds a lock on the device's node (fake_cuda.cc): the kernel says who
// does, and forgets it when the process ends, whatever namespaces it lives in.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "tests/support/fake_gpu/config.h"
#include "tests/support/fake_gpu/fake_gpu.h"

using namespace kcoral::fake_gpu;

namespace {

constexpr int kInvalidArgument = 2;
constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;

/// A handle is the number of the device, from 1.
void* handle_of(size_t device) { return reinterpret_cast<void*>(device + 1); }

template <typename Answer>
int with_device(void* handle, const Answer& answer) {
  const std::vector<DeviceFacts> all = devices();
  const auto number = reinterpret_cast<size_t>(handle);
  if (number < 1 || number > all.size()) return kInvalidArgument;
  answer(all[number - 1]);
  return 0;
}

int write_text(char* to, unsigned size, const std::string& text) {
  if (text.size() + 1 > size) return kInsufficientSize;
  memcpy(to, text.c_str(), text.size() + 1);
  return 0;
}

/// Of those that hold a lock on the node, from its first byte to as many as they have memory.
std::vector<Process> context_holders(const DeviceFacts& device) {
  struct stat node;
  std::vector<Process> holders;
  if (!has_nodes() || stat(node_of(device).c_str(), &node) != 0) return holders;
  char wanted[64];
  snprintf(wanted, sizeof wanted, "%02x:%02x:%lu", major(node.st_dev), minor(node.st_dev), node.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    char kind[16], file[64];
    unsigned pid = 0;
    unsigned long long last = 0;
    // 7: POSIX  ADVISORY  READ 4242 00:2f:9 0 1048575
    if (sscanf(line.c_str(), "%*d: %15s %*s READ %u %63s 0 %llu", kind, &pid, file, &last) != 4) continue;
    if (strcmp(kind, "POSIX") == 0 && strcmp(file, wanted) == 0) holders.push_back({pid, last + 1});
  }
  return holders;
}

std::vector<Process> processes_of(const DeviceFacts& device) {
  std::vector<Process> all = context_holders(device);
  all.insert(all.end(), device.processes.begin(), device.processes.end());
  return all;
}

}  // namespace

extern "C" {

struct fake_nvml_memory {
  unsigned long long total, free, used;
};
struct fake_nvml_utilisation {
  unsigned gpu, memory;
};
struct fake_nvml_process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2() { return static_cast<int>(fake_gpu_fault("NVML_ERROR")); }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int error) { return error == 999 ? "Unknown Error" : "as the fake NVML was told"; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return write_text(text, size, "999.1"); }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(devices().size());
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = handle_of(index);
  return with_device(*device, [](const DeviceFacts&) {});
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  const size_t count = devices().size();
  for (size_t each = 0; each < count; ++each) {
    if (pci_bus_id(each) != id) continue;
    *device = handle_of(each);
    return 0;
  }
  return kNotFound;
}

int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  int result = 0;
  const int found = with_device(device, [&](const DeviceFacts& it) { result = write_text(text, size, it.name); });
  return found != 0 ? found : result;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  return write_text(text, size, "GPU-fake-" + std::to_string(reinterpret_cast<size_t>(device) - 1));
}

int nvmlDeviceGetMinorNumber(void* device, unsigned* minor_number) {
  return with_device(device, [&](const DeviceFacts& it) { *minor_number = it.minor; });
}

int nvmlDeviceGetCudaComputeCapability(void* device, int* capability_major, int* capability_minor) {
  return with_device(device, [&](const DeviceFacts& it) {
    *capability_major = it.capability_major;
    *capability_minor = it.capability_minor;
  });
}

int nvmlDeviceGetMemoryInfo(void* device, fake_nvml_memory* memory) {
  if (const int64_t error = fake_gpu_fault("NVML_MEMORY_ERROR")) return static_cast<int>(error);
  return with_device(device, [&](const DeviceFacts& it) {
    *memory = {it.bytes, 0, it.used_bytes};
    for (const Process& process : processes_of(it)) memory->used += process.bytes.value_or(0);
    memory->free = memory->total - std::min(memory->total, memory->used);
  });
}

int nvmlDeviceGetUtilizationRates(void*, fake_nvml_utilisation* rates) {
  *rates = {37, 11};
  return static_cast<int>(fake_gpu_fault("NVML_UTILISATION_ERROR"));
}

int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
  *mhz = kind == 1 ? 1980 : 1;
  return static_cast<int>(fake_gpu_fault("NVML_CLOCK_ERROR"));
}

int nvmlDeviceGetTemperature(void*, int sensor, unsigned* degrees) {
  *degrees = 41;
  if (const int64_t error = fake_gpu_fault("NVML_TEMPERATURE_ERROR")) return static_cast<int>(error);
  return sensor;
}

int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* reasons) {
  *reasons = 0x1 | 0x4;
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, fake_nvml_process* processes) {
  if (const int64_t error = fake_gpu_fault("NVML_PROCESSES_ERROR")) return static_cast<int>(error);
  int result = 0;
  const int found = with_device(device, [&](const DeviceFacts& it) {
    const std::vector<Process> all = processes_of(it);
    if (all.size() > *count) result = kInsufficientSize;
    for (size_t i = 0; i < all.size() && i < *count; ++i) {
      processes[i] = {all[i].pid, all[i].bytes.value_or(kNotAvailable), 0, 0};
    }
    *count = static_cast<unsigned>(all.size());
  });
  return found != 0 ? found : result;
}
}
