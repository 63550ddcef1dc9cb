// Memory of the fake devices, which is memory of this process, and copies to and from it.
//
// What nobody wrote is not zero. (Large allocations are left as the kernel gives them, so that they cost nothing.)
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/fake_gpu/driver.h"

using namespace kcoral::fake_gpu;
using namespace kcoral::timing::abi;

namespace {

constexpr uint64_t kDeviceMemoryBytes = 8ULL << 30;
constexpr size_t kSpoiledBytesMax = 16 << 20;
constexpr unsigned kReadOnly = 8;  // CU_MEMHOSTREGISTER_READ_ONLY
constexpr int kPointerContext = 1;
constexpr int kPointerDevice = 9;
constexpr uint64_t kBytesPerNs = 32;

struct Range {
  uintptr_t start = 0;
  size_t bytes = 0;
  int device = 0;
  const DriverContext* context = nullptr;  // null: of a pool
};

struct Fill {
  uintptr_t start = 0;
  size_t bytes = 0;
  int byte = 0;
};

using Ranges = std::vector<Range>;

/// Never destroyed, as the libraries themselves are not; guarded by the lock.
Ranges& allocated() {
  static auto* ranges = new Ranges;
  return *ranges;
}
Ranges& registered() {
  static auto* ranges = new Ranges;
  return *ranges;
}
std::vector<Fill>& launched() {
  static auto* fills = new std::vector<Fill>;
  return *fills;
}

Ranges::iterator around(Ranges& ranges, uintptr_t start, size_t bytes) {
  return std::find_if(ranges.begin(), ranges.end(), [=](const Range& each) {
    return each.start <= start && start + bytes <= each.start + each.bytes;
  });
}

CudaResult allocate(DevicePointer* address, size_t bytes, int device, const DriverContext* context) {
  if (bytes == 0) return kInvalidValue;
  const int64_t limit = fake_gpu_fault("MEMORY_BYTES");
  const uint64_t there = limit > 0 ? static_cast<uint64_t>(limit) : kDeviceMemoryBytes;
  Lock lock;
  if (memory_bytes(device) + bytes > there) return kCudaOutOfMemory;
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (memory == MAP_FAILED) return kCudaOutOfMemory;
  if (bytes <= kSpoiledBytesMax) memset(memory, 0xA5, bytes);
  *address = reinterpret_cast<uintptr_t>(memory);
  allocated().push_back({static_cast<uintptr_t>(*address), bytes, device, context});
  show_use(device);
  return kCudaSuccess;
}

bool is_mapped(void* start, size_t bytes) {
  std::vector<unsigned char> resident(bytes / static_cast<size_t>(sysconf(_SC_PAGE_SIZE)));
  return mincore(start, bytes, resident.data()) == 0;
}

/// The kernel says, without a signal.
bool is_writable(void* address) {
  int ends[2];
  if (pipe(ends) != 0 || write(ends[1], address, 1) != 1) abort();
  const bool could_write = read(ends[0], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return could_write;
}

CudaResult copy(void* to, const void* from, uintptr_t device_memory, size_t bytes) {
  if (const CudaResult result = require_context()) return result;
  if (const CudaResult error = fault("COPY_ERROR")) return error;
  Lock lock;
  if (around(allocated(), device_memory, bytes) == allocated().end()) return kInvalidValue;
  memcpy(to, from, bytes);
  return kCudaSuccess;
}

void tell_of_copy(const char* api, size_t bytes, Stream stream) {
  launch(api, {kMemcpy, nullptr, 0, 0, 0, bytes, 0, 0, 0}, 1000 + bytes / kBytesPerNs,
         reinterpret_cast<uint64_t>(stream));
}

}  // namespace

namespace kcoral::fake_gpu {

uint64_t memory_bytes(int device) {
  uint64_t bytes = 0;
  for (const Range& each : allocated()) bytes += each.device == device ? each.bytes : 0;
  return bytes;
}

bool uses_memory(const DriverContext* context) {
  return !registered().empty() || std::any_of(allocated().begin(), allocated().end(),
                                              [=](const Range& each) { return each.context == context; });
}

void fill_what_was_launched() {
  for (const Fill& fill : launched()) memset(reinterpret_cast<void*>(fill.start), fill.byte, fill.bytes);
  launched().clear();
}

}  // namespace kcoral::fake_gpu

extern "C" {

CudaResult cuMemAlloc_v2(DevicePointer* address, size_t bytes) {
  call("cuMemAlloc_v2");
  if (const CudaResult result = require_context()) return result;
  return allocate(address, bytes, current_context()->device, current_context());
}

CudaResult fake_gpu_allocate_from_pool(DevicePointer* address, size_t bytes) {
  return is_initialised() ? allocate(address, bytes, 0, nullptr) : kCudaNotInitialized;
}

CudaResult cuMemFree_v2(DevicePointer address) {
  call("cuMemFree_v2");
  if (const CudaResult result = require_context()) return result;
  Lock lock;
  const auto found = around(allocated(), address, 1);
  if (found == allocated().end() || found->start != address) return kInvalidValue;
  munmap(reinterpret_cast<void*>(found->start), found->bytes);
  const int device = found->device;
  allocated().erase(found);
  show_use(device);
  return kCudaSuccess;
}

CudaResult cuPointerGetAttribute(void* value, int attribute, DevicePointer pointer) {
  if (!is_initialised()) return kCudaNotInitialized;
  Lock lock;
  const auto found = around(allocated(), pointer, 1);
  if (found == allocated().end()) return kInvalidValue;
  if (attribute == kPointerContext) {
    *static_cast<const DriverContext**>(value) = found->context;
  } else if (attribute == kPointerDevice) {
    *static_cast<int*>(value) = found->device;
  } else {
    return kInvalidValue;
  }
  return kCudaSuccess;
}

CudaResult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  if (const CudaResult result = require_context()) return result;
  if (const CudaResult error = fault("HOST_REGISTER_ERROR")) return error;
  const auto start = reinterpret_cast<uintptr_t>(address);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  if (bytes == 0 || start % page != 0 || bytes % page != 0) return kInvalidValue;
  Lock lock;
  for (const Range& each : registered()) {
    if (start < each.start + each.bytes && each.start < start + bytes) return kAlreadyRegistered;
  }
  if (!is_mapped(address, bytes)) return kInvalidValue;
  if ((flags & kReadOnly) == 0 && !is_writable(address)) return kInvalidValue;
  registered().push_back({start, bytes, 0, nullptr});
  note("register %llu flags %llu\n", bytes, flags);
  return kCudaSuccess;
}

CudaResult cuMemHostUnregister(void* address) {
  if (const CudaResult result = require_context()) return result;
  Lock lock;
  const auto found = around(registered(), reinterpret_cast<uintptr_t>(address), 1);
  if (found == registered().end() || found->start != reinterpret_cast<uintptr_t>(address)) return kNotRegistered;
  note("unregister %llu\n", found->bytes);
  registered().erase(found);
  return kCudaSuccess;
}

CudaResult cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, Stream stream) {
  if (const CudaResult error = copy(reinterpret_cast<void*>(to), from, to, bytes)) return error;
  note("copy in %llu on stream %llu\n", bytes, reinterpret_cast<uintptr_t>(stream));
  tell_of_copy("cuMemcpyHtoDAsync_v2", bytes, stream);
  return kCudaSuccess;
}

CudaResult cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
  if (const CudaResult error = copy(to, reinterpret_cast<const void*>(from), from, bytes)) return error;
  note("copy out %llu\n", bytes);
  tell_of_copy("cuMemcpyDtoH_v2", bytes, nullptr);
  return kCudaSuccess;
}

CudaResult fake_gpu_launch_fill(DevicePointer address, int byte, size_t bytes) {
  if (!is_initialised()) return kCudaNotInitialized;
  Lock lock;
  if (around(allocated(), address, bytes) == allocated().end()) return kInvalidValue;
  launched().push_back({static_cast<uintptr_t>(address), bytes, byte});
  return kCudaSuccess;
}
}
