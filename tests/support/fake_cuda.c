// A CUDA driver without a GPU: what executor/runtime/cuda.py calls of libcuda.so.1, with "device" memory on the heap.
//
// It holds its callers to what a real one demands: nothing before cuInit (nor in a fork after it), a current context
// for whatever needs one, addresses that were allocated, each registered range unregistered once. It is stricter in one
// thing: the last release of a primary context aborts where something is still registered, or allocated in that
// context.
//
// FAKE_CUDA_FAULT names the faults that it plays, separated by commas; it is read at every call:
//
//   init         cuInit finds no device
//   context      a new primary context finds no memory
//   register     registering is not supported
//   copy         every copy fails
//   synchronise  waiting finds that a kernel used an illegal address
//
// FAKE_CUDA_DEVICES is how many devices there are (1). Each successful call that a test may want to see is appended to
// the file that FAKE_CUDA_LOG names, one line each. Two functions stand in for a program's own work:
//
//   fakeLaunchFill   fills device memory, but not before somebody waits for the context
//   fakePoolAlloc    memory that belongs to a device and to no context
//
// Single-threaded but for the stack of current contexts.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotSupported = 801,

  kReadOnly = 8,  // CU_MEMHOSTREGISTER_READ_ONLY
  kPointerContext = 1,
  kPointerDevice = 9,

  kDevicesMax = 8,
  kContextsPushedMax = 16,
  kRangesMax = 1024,
};

struct Context {
  int retained;  // active while above 0
};

struct Range {
  uintptr_t start;
  size_t size;
  struct Context* context;  // NULL: of a pool
};

struct Fill {
  uintptr_t start;
  size_t size;
  int byte;
};

static int initialized_in;  // process id
static struct Context primary[kDevicesMax];
static struct Range allocated[kRangesMax];
static struct Range registered[kRangesMax];
static struct Fill pending[kRangesMax];
static int pending_count;
static _Thread_local struct Context* current[kContextsPushedMax];
static _Thread_local int current_count;

static void note(const char* format, unsigned long long a, unsigned long long b) {
  const char* path = getenv("FAKE_CUDA_LOG");
  if (path == NULL) return;
  char line[128];
  const int length = snprintf(line, sizeof line, format, a, b);
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line, (size_t)length) != length) abort();
  close(fd);
}

static int plays(const char* fault) {
  const char* faults = getenv("FAKE_CUDA_FAULT");
  if (faults == NULL) return 0;
  const size_t length = strlen(fault);
  for (const char* at = faults; (at = strstr(at, fault)) != NULL; at += length) {
    if ((at == faults || at[-1] == ',') && (at[length] == '\0' || at[length] == ',')) return 1;
  }
  return 0;
}

static int device_count(void) {
  const char* count = getenv("FAKE_CUDA_DEVICES");
  return count == NULL ? 1 : atoi(count);
}

static int is_initialized(void) { return initialized_in == getpid(); }

static struct Range* range_around(struct Range* ranges, uintptr_t start, size_t size) {
  for (int at = 0; at < kRangesMax; ++at) {
    struct Range* range = &ranges[at];
    if (range->size > 0 && range->start <= start && start + size <= range->start + range->size) return range;
  }
  return NULL;
}

static struct Range* free_range(struct Range* ranges) {
  for (int at = 0; at < kRangesMax; ++at) {
    if (ranges[at].size == 0) return &ranges[at];
  }
  abort();
}

static int overlaps_registered(uintptr_t start, size_t size) {
  for (int at = 0; at < kRangesMax; ++at) {
    const struct Range* range = &registered[at];
    if (range->size > 0 && start < range->start + range->size && range->start < start + size) return 1;
  }
  return 0;
}

static int needs_context(void) {
  if (!is_initialized()) return kNotInitialized;
  return current_count == 0 || current[current_count - 1]->retained == 0 ? kInvalidContext : kSuccess;
}

static int wait_for_all(void) {
  if (plays("synchronise")) return kIllegalAddress;
  for (int at = 0; at < pending_count; ++at) memset((void*)pending[at].start, pending[at].byte, pending[at].size);
  pending_count = 0;
  return kSuccess;
}

int cuInit(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  if (plays("init")) return kNoDevice;
  if (initialized_in != 0 && !is_initialized()) return kNotInitialized;  // for good: it was before the fork
  initialized_in = getpid();
  note("init\n", 0, 0);
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  static const struct {
    int error;
    const char* name;
  } names[] = {
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
      {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
      {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
      {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
  };
  for (size_t at = 0; at < sizeof names / sizeof names[0]; ++at) {
    if (names[at].error == error) {
      *name = names[at].name;
      return kSuccess;
    }
  }
  return kInvalidValue;
}

int cuGetErrorString(int error, const char** text) {
  const char* name;
  if (cuGetErrorName(error, &name) != kSuccess) return kInvalidValue;
  *text = error == kIllegalAddress ? "an illegal memory access was encountered" : "as the fake driver was told";
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  if (!is_initialized()) return kNotInitialized;
  *count = device_count();
  return kSuccess;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (!is_initialized()) return kNotInitialized;
  if (device < 0 || device >= device_count()) return kInvalidDevice;
  *flags = 0;
  *active = primary[device].retained > 0;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(struct Context** context, int device) {
  if (!is_initialized()) return kNotInitialized;
  if (device < 0 || device >= device_count()) return kInvalidDevice;
  if (primary[device].retained == 0) {
    if (plays("context")) return kOutOfMemory;
    note("context %llu\n", (unsigned long long)device, 0);
  }
  ++primary[device].retained;
  *context = &primary[device];
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  if (!is_initialized()) return kNotInitialized;
  if (device < 0 || device >= device_count()) return kInvalidDevice;
  if (primary[device].retained == 0) return kInvalidContext;
  if (--primary[device].retained == 0) {
    for (int at = 0; at < kRangesMax; ++at) {
      if (registered[at].size > 0) abort();
      if (allocated[at].size > 0 && allocated[at].context == &primary[device]) abort();
    }
    note("context %llu ends\n", (unsigned long long)device, 0);
  }
  return kSuccess;
}

int cuCtxPushCurrent_v2(struct Context* context) {
  if (!is_initialized()) return kNotInitialized;
  if (context == NULL || context->retained == 0) return kInvalidContext;
  if (current_count == kContextsPushedMax) abort();
  current[current_count++] = context;
  return kSuccess;
}

int cuCtxPopCurrent_v2(struct Context** context) {
  if (!is_initialized()) return kNotInitialized;
  if (current_count == 0) return kInvalidContext;
  *context = current[--current_count];
  return kSuccess;
}

int cuCtxSynchronize(void) {
  const int fault = needs_context();
  return fault != kSuccess ? fault : wait_for_all();
}

int cuStreamSynchronize(void* stream) {
  (void)stream;
  return cuCtxSynchronize();
}

int cuPointerGetAttribute(void* data, int attribute, uint64_t pointer) {
  if (!is_initialized()) return kNotInitialized;
  const struct Range* range = range_around(allocated, pointer, 1);
  if (range == NULL) return kInvalidValue;
  if (attribute == kPointerContext) {
    *(struct Context**)data = range->context;
  } else if (attribute == kPointerDevice) {
    *(int*)data = range->context == NULL ? 0 : (int)(range->context - primary);
  } else {
    return kInvalidValue;
  }
  return kSuccess;
}

static int allocate(uint64_t* pointer, size_t size, struct Context* context) {
  if (size == 0) return kInvalidValue;
  struct Range* range = free_range(allocated);
  range->start = (uintptr_t)malloc(size);
  range->size = size;
  range->context = context;
  memset((void*)range->start, 0xA5, size);  // what nobody wrote is not zero
  *pointer = range->start;
  return kSuccess;
}

int cuMemAlloc_v2(uint64_t* pointer, size_t size) {
  const int fault = needs_context();
  return fault != kSuccess ? fault : allocate(pointer, size, current[current_count - 1]);
}

int fakePoolAlloc(uint64_t* pointer, size_t size) {
  return is_initialized() ? allocate(pointer, size, NULL) : kNotInitialized;
}

int cuMemFree_v2(uint64_t pointer) {
  const int fault = needs_context();
  if (fault != kSuccess) return fault;
  struct Range* range = range_around(allocated, pointer, 1);
  if (range == NULL || range->start != pointer) return kInvalidValue;
  free((void*)range->start);
  range->size = 0;
  return kSuccess;
}

int cuMemHostRegister_v2(void* address, size_t size, unsigned flags) {
  const int fault = needs_context();
  if (fault != kSuccess) return fault;
  if (plays("register")) return kNotSupported;
  const uintptr_t start = (uintptr_t)address;
  const size_t page = (size_t)sysconf(_SC_PAGE_SIZE);
  if (size == 0 || start % page != 0 || size % page != 0) return kInvalidValue;
  if (overlaps_registered(start, size)) return kAlreadyRegistered;
  // Pages that are not mapped, or that the device may not write.
  unsigned char* resident = malloc(size / page);
  const int is_mapped = mincore(address, size, resident) == 0;
  free(resident);
  if (!is_mapped) return kInvalidValue;
  if ((flags & kReadOnly) == 0) {
    int fds[2];
    if (pipe(fds) != 0 || write(fds[1], address, 1) != 1) abort();
    const int is_writable = read(fds[0], address, 1) == 1;
    close(fds[0]);
    close(fds[1]);
    if (!is_writable) return kInvalidValue;
  }
  struct Range* range = free_range(registered);
  range->start = start;
  range->size = size;
  note("register %llu flags %llu\n", size, flags);
  return kSuccess;
}

int cuMemHostUnregister(void* address) {
  const int fault = needs_context();
  if (fault != kSuccess) return fault;
  struct Range* range = range_around(registered, (uintptr_t)address, 1);
  if (range == NULL || range->start != (uintptr_t)address) return kNotRegistered;
  note("unregister %llu\n", range->size, 0);
  range->size = 0;
  return kSuccess;
}

static int copy(void* to, const void* from, uint64_t device_memory, size_t size) {
  const int fault = needs_context();
  if (fault != kSuccess) return fault;
  if (plays("copy") || range_around(allocated, device_memory, size) == NULL) return kInvalidValue;
  memcpy(to, from, size);
  return kSuccess;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void* stream) {
  const int fault = copy((void*)(uintptr_t)to, from, to, size);
  if (fault == kSuccess) note("copy in %llu on stream %llu\n", size, (uintptr_t)stream);
  return fault;
}

int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t size) {
  const int fault = copy(to, (const void*)(uintptr_t)from, from, size);
  if (fault == kSuccess) note("copy out %llu\n", size, 0);
  return fault;
}

int fakeLaunchFill(uint64_t pointer, int byte, size_t size) {
  if (!is_initialized()) return kNotInitialized;
  if (range_around(allocated, pointer, size) == NULL || pending_count == kRangesMax) return kInvalidValue;
  pending[pending_count++] = (struct Fill){pointer, size, byte};
  return kSuccess;
}
