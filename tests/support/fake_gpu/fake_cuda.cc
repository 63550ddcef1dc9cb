// libcuda.so.1: the devices that this process sees, their primary contexts, their streams and their time.
//
// A process that has a primary context holds a lock on its device's node, as long as it has memory there, so that NVML
// in another process knows of it (fake_nvml.cc).
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/fake_gpu/config.h"
#include "tests/support/fake_gpu/driver.h"

using namespace kcoral::fake_gpu;
using namespace kcoral::timing::abi;

namespace {

constexpr uint64_t kHostCallNs = 1000;
constexpr size_t kStreams = 64;
constexpr uint64_t kFirstNs = 1'000'000;
constexpr int kDevicesMax = 8;
constexpr int kContextsPushedMax = 16;
constexpr uint64_t kContextBytes = 300ULL << 20;

std::atomic<pid_t> initialised_in{0};
std::atomic<int64_t> marks{0};
std::atomic<void (*)(const fake_gpu_event*)> observer{nullptr};
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards what follows
uint64_t now_ns = kFirstNs;
uint64_t stream_end_ns[kStreams] = {};
uint32_t correlation_id = 0;
int64_t synchronisations = 0;
int node_fds[kDevicesMax] = {-1, -1, -1, -1, -1, -1, -1, -1};

DriverContext primaries[kDevicesMax];
DriverContext other_context{0, {1}};
thread_local DriverContext* pushed[kContextsPushedMax] = {};
thread_local int pushed_count = 0;

struct Visible {
  size_t number = 0;  // among all of the machine
  std::string node;
};

/// Never destroyed, as the libraries themselves are not. Set by cuInit.
std::vector<Visible>& visible() {
  static auto* all = new std::vector<Visible>;
  return *all;
}

/// Tells CUPTI. Without the lock: its client may call us.
void tell(const fake_gpu_event& event) {
  if (const auto target = observer.load()) target(&event);
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

std::vector<Visible> devices_with_nodes() {
  std::vector<Visible> found;
  const std::vector<DeviceFacts> all = devices();
  for (size_t number = 0; number < all.size(); ++number) {
    const std::string node = node_of(all[number]);
    if (!has_nodes() || access(node.c_str(), R_OK | W_OK) == 0) found.push_back({number, node});
  }
  return found;
}

/// Of the devices with a node those that CUDA_VISIBLE_DEVICES names by their numbers, up to the first that it cannot.
void look_for_devices() {
  visible() = devices_with_nodes();
  if (const char* at = getenv("CUDA_VISIBLE_DEVICES")) {
    std::vector<Visible> chosen;
    while (*at >= '0' && *at <= '9') {
      char* end = nullptr;
      const size_t position = strtoul(at, &end, 10);
      if (position >= visible().size()) break;
      chosen.push_back(visible()[position]);
      at = *end == ',' ? end + 1 : end;
    }
    visible().swap(chosen);
  }
  if (visible().size() > kDevicesMax) abort();
  for (int device = 0; device < kDevicesMax; ++device) primaries[device].device = device;
}

int device_count() { return static_cast<int>(visible().size()); }

void open_node(int device) {
  if (!has_nodes()) return;
  node_fds[device] = open(visible()[static_cast<size_t>(device)].node.c_str(), O_RDWR | O_CLOEXEC);
  if (node_fds[device] < 0) abort();
  show_use(device);
}

void close_node(int device) {
  if (node_fds[device] >= 0) close(node_fds[device]);
  node_fds[device] = -1;
}

struct ErrorName {
  CudaResult error;
  const char* name;
};
constexpr ErrorName kErrorNames[] = {
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
    {kCudaOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
    {kCudaNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
};

}  // namespace

namespace kcoral::fake_gpu {

Lock::Lock() { pthread_mutex_lock(&mutex); }
Lock::~Lock() { pthread_mutex_unlock(&mutex); }

bool is_initialised() { return initialised_in == getpid(); }

DriverContext* current_context() { return pushed_count == 0 ? nullptr : pushed[pushed_count - 1]; }

CudaResult require_context() {
  if (!is_initialised()) return kCudaNotInitialized;
  const DriverContext* context = current_context();
  return context == nullptr || context->references == 0 ? kInvalidContext : kCudaSuccess;
}

DriverContext* primary_context(int device) {
  return device >= 0 && device < device_count() ? &primaries[device] : nullptr;
}

uint32_t call(const char* name, bool is_runtime) {
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

void launch(const char* api, fake_gpu_event event, uint64_t duration_ns, uint64_t stream) {
  event.correlation_id = call(api);
  work(event, duration_ns, stream);
}

void note(const char* format, unsigned long long a, unsigned long long b) {
  const char* path = getenv("FAKE_GPU_LOG");
  if (path == nullptr) return;
  char line[128];
  const int length = snprintf(line, sizeof line, format, a, b);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line, static_cast<size_t>(length)) != length) abort();
  close(fd);
}

void show_use(int device) {
  if (node_fds[device] < 0) return;
  const auto bytes = static_cast<off_t>(kContextBytes + memory_bytes(device));
  struct flock held {};
  held.l_type = F_RDLCK;
  held.l_len = bytes;
  struct flock beyond {};
  beyond.l_type = F_UNLCK;
  beyond.l_start = bytes;
  if (fcntl(node_fds[device], F_SETLK, &held) != 0 || fcntl(node_fds[device], F_SETLK, &beyond) != 0) abort();
}

}  // namespace kcoral::fake_gpu

extern "C" {

CudaResult cuInit(unsigned flags) {
  call("cuInit");
  if (flags != 0) return kInvalidValue;
  if (const CudaResult error = fault("INIT_ERROR")) return error;
  if (is_initialised()) return kCudaSuccess;
  Lock lock;
  look_for_devices();
  if (visible().empty()) return kNoDevice;
  initialised_in = getpid();
  note("init\n");
  return kCudaSuccess;
}

CudaResult cuGetErrorName(CudaResult error, const char** name) {
  const auto* known = std::find_if(std::begin(kErrorNames), std::end(kErrorNames),
                                   [error](const ErrorName& each) { return each.error == error; });
  *name = known == std::end(kErrorNames) ? nullptr : known->name;
  return *name != nullptr ? kCudaSuccess : kInvalidValue;
}

CudaResult cuGetErrorString(CudaResult error, const char** text) {
  const CudaResult known = cuGetErrorName(error, text);
  if (known != kCudaSuccess) return known;
  *text = error == kIllegalAddress ? "an illegal memory access was encountered" : "as the fake driver was told";
  return kCudaSuccess;
}

CudaResult cuDeviceGetCount(int* count) {
  if (!is_initialised()) return kCudaNotInitialized;
  *count = device_count();
  return kCudaSuccess;
}

CudaResult cuDeviceGet(int* device, int ordinal) {
  if (!is_initialised()) return kCudaNotInitialized;
  *device = ordinal;
  return primary_context(ordinal) != nullptr ? kCudaSuccess : kInvalidDevice;
}

CudaResult cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == kAttributeL2CacheBytes ? 50 << 20 : 0;
  return kCudaSuccess;
}

CudaResult cuDeviceGetPCIBusId(char* text, int size, int device) {
  if (primary_context(device) == nullptr) return kInvalidDevice;
  snprintf(text, static_cast<size_t>(size), "%s", pci_bus_id(visible()[static_cast<size_t>(device)].number).c_str());
  return kCudaSuccess;
}

// --- Contexts ---

CudaResult cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (!is_initialised()) return kCudaNotInitialized;
  const DriverContext* context = primary_context(device);
  if (context == nullptr) return kInvalidDevice;
  *flags = 0;
  *active = context->references > 0;
  return kCudaSuccess;
}

CudaResult cuDevicePrimaryCtxRetain(DriverContext** context, int device) {
  if (!is_initialised()) return kCudaNotInitialized;
  DriverContext* primary = primary_context(device);
  if (primary == nullptr) return kInvalidDevice;
  Lock lock;
  if (primary->references == 0) {
    if (const CudaResult error = fault("CONTEXT_ERROR")) return error;
    open_node(device);
    note("context %llu\n", static_cast<unsigned>(device));
  }
  ++primary->references;
  *context = primary;
  return kCudaSuccess;
}

CudaResult cuDevicePrimaryCtxRelease_v2(int device) {
  if (!is_initialised()) return kCudaNotInitialized;
  DriverContext* primary = primary_context(device);
  if (primary == nullptr) return kInvalidDevice;
  Lock lock;
  if (primary->references == 0) return kInvalidContext;
  if (--primary->references > 0) return kCudaSuccess;
  if (uses_memory(primary)) abort();
  close_node(device);
  note("context %llu ends\n", static_cast<unsigned>(device));
  return kCudaSuccess;
}

CudaResult cuCtxGetCurrent(DriverContext** context) {
  call("cuCtxGetCurrent");
  *context = current_context();
  return is_initialised() ? kCudaSuccess : kCudaNotInitialized;
}

CudaResult cuCtxSetCurrent(DriverContext* context) {
  if (!is_initialised()) return kCudaNotInitialized;
  if (pushed_count > 0) --pushed_count;
  if (context != nullptr) pushed[pushed_count++] = context;
  return kCudaSuccess;
}

CudaResult cuCtxPushCurrent_v2(DriverContext* context) {
  if (!is_initialised()) return kCudaNotInitialized;
  if (context == nullptr || context->references == 0) return kInvalidContext;
  if (pushed_count == kContextsPushedMax) abort();
  pushed[pushed_count++] = context;
  return kCudaSuccess;
}

CudaResult cuCtxPopCurrent_v2(DriverContext** context) {
  if (!is_initialised()) return kCudaNotInitialized;
  if (pushed_count == 0) return kInvalidContext;
  *context = pushed[--pushed_count];
  return kCudaSuccess;
}

CudaResult cuCtxGetDevice(int* device) {
  const CudaResult result = require_context();
  if (result == kCudaSuccess) *device = current_context()->device;
  return result;
}

// --- Streams and time ---

static CudaResult wait_for(const uint64_t* first, const uint64_t* last) {
  for (; first != last; ++first) now_ns = std::max(now_ns, *first);
  if (const CudaResult result = require_context()) return result;
  if (const CudaResult error = fault("SYNCHRONIZE_ERROR")) return error;
  fill_what_was_launched();
  return kCudaSuccess;
}

CudaResult cuCtxSynchronize() {
  call("cuCtxSynchronize");
  Lock lock;
  ++synchronisations;
  return wait_for(std::begin(stream_end_ns), std::end(stream_end_ns));
}

CudaResult cuStreamSynchronize(Stream stream) {
  call("cuStreamSynchronize");
  Lock lock;
  const uint64_t* end = &stream_end_ns[reinterpret_cast<uint64_t>(stream) % kStreams];
  return wait_for(end, end + 1);
}

CudaResult cuMemsetD32Async(DevicePointer address, unsigned value, size_t count, Stream stream) {
  constexpr uint64_t kBytesPerNs = 2048;
  if (const CudaResult error = fault("MEMSET_ERROR")) return error;
  if (const CudaResult result = require_context()) return result;
  if (address == 0) return kInvalidValue;
  ++marks;
  const uint64_t bytes = count * sizeof(uint32_t);
  launch("cuMemsetD32Async", {kMemset, nullptr, 0, 0, value, bytes, 0, 0, 0}, 1000 + bytes / kBytesPerNs,
         reinterpret_cast<uint64_t>(stream));
  return kCudaSuccess;
}

// --- What a test calls ---

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
  DriverContext* context = nullptr;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
}

void fake_gpu_leave() {
  pushed_count = 0;
  for (DriverContext& context : primaries) context.references = 0;
  initialised_in = 0;
}

void fake_gpu_use_other_context() { cuCtxSetCurrent(&other_context); }

void fake_gpu_observe(void (*new_observer)(const fake_gpu_event*)) { observer = new_observer; }

int64_t fake_gpu_state(const char* name) {
  const auto is = [&](const char* known) { return strcmp(name, known) == 0; };
  if (is("memory_bytes")) {
    Lock lock;
    uint64_t bytes = 0;
    for (int device = 0; device < kDevicesMax; ++device) bytes += memory_bytes(device);
    return static_cast<int64_t>(bytes);
  }
  if (is("contexts")) {
    int references = 0;
    for (const DriverContext& context : primaries) references += context.references;
    return references;
  }
  if (is("current")) return current_context() == nullptr ? 0 : current_context() == &other_context ? 2 : 1;
  if (is("initialised")) return is_initialised();
  if (is("synchronisations")) return synchronisations;
  if (is("marks")) return marks;
  void* cupti = dlopen("libcupti.so.13", RTLD_LAZY | RTLD_NOLOAD);
  if (cupti == nullptr) return -1;
  const auto ask = reinterpret_cast<int64_t (*)(const char*)>(dlsym(cupti, "fake_cupti_state"));
  return ask != nullptr ? ask(name) : -1;
}
}
