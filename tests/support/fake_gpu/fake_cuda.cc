// libcuda.so.1: one device, its primary context, its memory and its streams.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "executor/timing/cupti_abi.h"
#include "tests/support/fake_gpu/fake_gpu.h"

using namespace kcoral::timing::abi;

namespace {

constexpr uint64_t kHostCallNs = 1000;
constexpr uint64_t kMemsetBytesPerNs = 2048;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr size_t kStreams = 64;
constexpr size_t kAllocations = 64;
constexpr uint64_t kDeviceMemoryBytes = 8ULL << 30;
constexpr uint64_t kFirstNs = 1'000'000;

struct Allocation {
  DevicePointer address;
  size_t bytes;
};

std::atomic<bool> initialised{false};
std::atomic<int> context_references{0};
std::atomic<int64_t> marks{0};
std::atomic<void (*)(const fake_gpu_event*)> observer{nullptr};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards what follows
uint64_t now_ns = kFirstNs;
uint64_t stream_end_ns[kStreams] = {};
Allocation allocations[kAllocations] = {};
uint64_t memory_bytes = 0;
uint32_t correlation_id = 0;
int64_t synchronisations = 0;

char primary_context;
char other_context;
thread_local Context current = nullptr;
thread_local Context pushed[8] = {};
thread_local size_t pushed_count = 0;

class Lock {
 public:
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};

/// Tells CUPTI. Without the lock: its client may call us.
void tell(const fake_gpu_event& event) {
  if (const auto target = observer.load()) target(&event);
}

uint32_t call(const char* name, bool is_runtime = false) {
  fake_gpu_event event{};
  {
    Lock lock;
    now_ns += kHostCallNs;
    event.correlation_id = ++correlation_id;
  }
  event.name = name;
  event.is_runtime = is_runtime;
  tell(event);
  return event.correlation_id;
}

/// Puts work on a stream.
void work(fake_gpu_event event, uint64_t duration_ns, uint64_t stream) {
  {
    Lock lock;
    uint64_t& end = stream_end_ns[stream % kStreams];
    event.start = std::max(now_ns, end);
    event.end = end = event.start + duration_ns;
  }
  tell(event);
}

void launch(const char* api, fake_gpu_event event, uint64_t duration_ns, uint64_t stream) {
  event.correlation_id = call(api);
  work(event, duration_ns, stream);
}

CudaResult require_context() { return current != nullptr ? kCudaSuccess : kInvalidContext; }

}  // namespace

extern "C" {

CudaResult cuInit(unsigned) {
  call("cuInit");
  const auto error = static_cast<CudaResult>(fake_gpu_fault("INIT_ERROR"));
  if (error == kCudaSuccess) initialised = true;
  return error;
}

CudaResult cuGetErrorName(CudaResult error, const char** name) {
  *name = error == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : nullptr;
  return *name != nullptr ? kCudaSuccess : 1;
}

CudaResult cuGetErrorString(CudaResult error, const char** text) {
  *text = error == 700 ? "an illegal memory access was encountered" : nullptr;
  return *text != nullptr ? kCudaSuccess : 1;
}

CudaResult cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return initialised ? kCudaSuccess : kCudaNotInitialized;
}

CudaResult cuDeviceGetAttribute(int* value, int attribute, Device) {
  *value = attribute == kAttributeL2CacheBytes ? 50 << 20 : 0;
  return kCudaSuccess;
}

CudaResult cuDeviceGetPCIBusId(char* text, int size, Device) {
  snprintf(text, static_cast<size_t>(size), "00000000:1A:00.0");
  return kCudaSuccess;
}

CudaResult cuDevicePrimaryCtxRetain(Context* context, Device) {
  ++context_references;
  *context = &primary_context;
  return kCudaSuccess;
}

CudaResult cuDevicePrimaryCtxRelease_v2(Device) {
  --context_references;
  return kCudaSuccess;
}

CudaResult cuCtxGetCurrent(Context* context) {
  call("cuCtxGetCurrent");
  *context = current;
  return initialised ? kCudaSuccess : kCudaNotInitialized;
}

CudaResult cuCtxSetCurrent(Context context) {
  current = context;
  return kCudaSuccess;
}

CudaResult cuCtxPushCurrent_v2(Context context) {
  pushed[pushed_count++] = current;
  current = context;
  return kCudaSuccess;
}

CudaResult cuCtxPopCurrent_v2(Context* context) {
  *context = current;
  current = pushed[--pushed_count];
  return kCudaSuccess;
}

CudaResult cuCtxGetDevice(Device* device) {
  *device = 0;
  return require_context();
}

CudaResult cuCtxSynchronize() {
  call("cuCtxSynchronize");
  Lock lock;
  ++synchronisations;
  for (const uint64_t end : stream_end_ns) now_ns = std::max(now_ns, end);
  if (const auto error = static_cast<CudaResult>(fake_gpu_fault("SYNCHRONIZE_ERROR"))) return error;
  return require_context();
}

CudaResult cuMemAlloc_v2(DevicePointer* address, size_t bytes) {
  call("cuMemAlloc_v2");
  Lock lock;
  const auto limit = fake_gpu_fault("MEMORY_BYTES");
  if (memory_bytes + bytes > (limit > 0 ? static_cast<uint64_t>(limit) : kDeviceMemoryBytes)) return kCudaOutOfMemory;
  for (size_t i = 0; i < kAllocations; ++i) {
    if (allocations[i].address != 0) continue;
    *address = (i + 1) << 32;
    allocations[i] = {*address, bytes};
    memory_bytes += bytes;
    return require_context();
  }
  return kCudaOutOfMemory;
}

CudaResult cuMemFree_v2(DevicePointer address) {
  call("cuMemFree_v2");
  Lock lock;
  for (Allocation& allocation : allocations) {
    if (allocation.address != address) continue;
    memory_bytes -= allocation.bytes;
    allocation = {};
    return require_context();
  }
  return 1;
}

CudaResult cuMemsetD32Async(DevicePointer address, unsigned value, size_t count, Stream stream) {
  if (const auto error = static_cast<CudaResult>(fake_gpu_fault("MEMSET_ERROR"))) return error;
  const CudaResult result = require_context();
  if (result != kCudaSuccess || address == 0) return result != kCudaSuccess ? result : 1;
  ++marks;
  const uint64_t bytes = count * sizeof(uint32_t);
  launch("cuMemsetD32Async", {kMemset, nullptr, 0, 0, value, bytes, 0, 0, 0}, 1000 + bytes / kMemsetBytesPerNs,
         reinterpret_cast<uint64_t>(stream));
  return kCudaSuccess;
}

void fake_gpu_launch(const char* name, int grid, uint64_t duration_ns, uint64_t stream) {
  launch("cuLaunchKernel", {kConcurrentKernel, name, 0, grid, 0, 0, 0, 0, 0}, duration_ns, stream);
}

void fake_gpu_launch_graph(const char* name, int count, uint64_t duration_ns, uint64_t stream) {
  fake_gpu_event event{kConcurrentKernel, name, 0, 1, 0, 0, 0, 0, call("cuGraphLaunch")};
  for (int i = 0; i < count; ++i) work(event, duration_ns, stream);
}

void fake_gpu_copy(uint64_t bytes, uint64_t duration_ns, uint64_t stream) {
  launch("cuMemcpyAsync", {kMemcpy, nullptr, 0, 0, 0, bytes, 0, 0, 0}, duration_ns, stream);
}

void fake_gpu_copy_peer(uint64_t bytes, uint64_t duration_ns, uint64_t stream) {
  launch("cuMemcpyPeerAsync", {kPeerMemcpy, nullptr, 0, 0, 0, bytes, 0, 0, 0}, duration_ns, stream);
}

void fake_gpu_memset(uint32_t value, uint64_t bytes, uint64_t duration_ns, uint64_t stream) {
  launch("cuMemsetD32Async", {kMemset, nullptr, 0, 0, value, bytes, 0, 0, 0}, duration_ns, stream);
}

void fake_gpu_call(const char* name, int is_runtime) { call(name, is_runtime != 0); }

void fake_gpu_use() {
  cuInit(0);
  cuDevicePrimaryCtxRetain(&current, 0);
}

void fake_gpu_leave() {
  current = nullptr;
  context_references = 0;
  initialised = false;
}

void fake_gpu_use_other_context() { current = &other_context; }

void fake_gpu_observe(void (*new_observer)(const fake_gpu_event*)) { observer = new_observer; }

int64_t fake_gpu_state(const char* name) {
  const auto is = [&](const char* known) { return strcmp(name, known) == 0; };
  if (is("memory_bytes")) return static_cast<int64_t>(memory_bytes);
  if (is("contexts")) return context_references;
  if (is("current")) return current == &primary_context ? 1 : current == &other_context ? 2 : 0;
  if (is("initialised")) return initialised;
  if (is("synchronisations")) return synchronisations;
  if (is("marks")) return marks;
  void* cupti = dlopen("libcupti.so.13", RTLD_LAZY | RTLD_NOLOAD);
  if (cupti == nullptr) return -1;
  const auto ask = reinterpret_cast<int64_t (*)(const char*)>(dlsym(cupti, "fake_cupti_state"));
  return ask != nullptr ? ask(name) : -1;
}
}
