// The few pieces of CUPTI's and the CUDA driver's binary interface that libkcoral_timing.so uses, declared by hand, so
// that it builds on machines without CUDA and runs with whatever CUPTI the program's own libraries brought along.
//
// What is here is the same in CUPTI 12 and 13: activity records only ever grow at their end, and
// cuptiActivityGetNextRecord knows how long they are. tests/unit/timing/cupti_abi_test.cc holds every offset, size and
// value against the real headers where they are installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kcoral::timing::abi {

// --- CUPTI: results ---

using CuptiResult = int;
inline constexpr CuptiResult kCuptiSuccess = 0;
inline constexpr CuptiResult kCuptiMaxLimitReached = 12;  // no more records in a buffer
inline constexpr CuptiResult kCuptiNotCompatible = 14;
inline constexpr CuptiResult kCuptiNotInitialized = 15;
inline constexpr CuptiResult kCuptiInsufficientPrivileges = 35;
inline constexpr CuptiResult kCuptiMultipleSubscribers = 39;  // one is there already; or ncu, nsys, a debugger

// --- CUPTI: activities ---

using ActivityKind = int;
inline constexpr ActivityKind kMemcpy = 1;
inline constexpr ActivityKind kMemset = 2;
inline constexpr ActivityKind kSerialKernel = 3;
inline constexpr ActivityKind kConcurrentKernel = 10;
inline constexpr ActivityKind kPeerMemcpy = 22;

inline constexpr uint32_t kFlushForced = 1;
inline constexpr size_t kRecordAlignment = 8;

/// What every record begins with.
struct Activity {
  ActivityKind kind;
};

struct KernelActivity {
  ActivityKind kind;
  uint8_t cache_config;
  uint8_t shared_memory_config;
  uint16_t registers_per_thread;
  int32_t global_cache_requested;
  int32_t global_cache_executed;
  uint64_t start;  // ns; 0 for both where no time could be taken
  uint64_t end;
  uint64_t completed;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  int32_t grid[3];
  int32_t block[3];
  int32_t static_shared_memory;
  int32_t dynamic_shared_memory;
  uint32_t local_memory_per_thread;
  uint32_t local_memory_total;
  uint32_t correlation_id;  // of the call that launched it; of a graph's nodes that of the graph's launch
  int64_t grid_id;
  const char* name;
};

struct MemcpyActivity {
  ActivityKind kind;
  uint8_t copy_kind;
  uint8_t source_kind;
  uint8_t destination_kind;
  uint8_t flags;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t correlation_id;
};

struct PeerMemcpyActivity {
  ActivityKind kind;
  uint8_t copy_kind;
  uint8_t source_kind;
  uint8_t destination_kind;
  uint8_t flags;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t source_device_id;
  uint32_t source_context_id;
  uint32_t destination_device_id;
  uint32_t destination_context_id;
  uint32_t correlation_id;
};

struct MemsetActivity {
  ActivityKind kind;
  uint32_t value;
  uint64_t bytes;
  uint64_t start;
  uint64_t end;
  uint32_t device_id;
  uint32_t context_id;
  uint32_t stream_id;
  uint32_t correlation_id;
};

using BufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* records_max);
using BufferCompleted = void (*)(void* context, uint32_t stream_id, uint8_t* buffer, size_t size, size_t valid_size);

// --- CUPTI: callbacks ---

using CallbackDomain = int;
inline constexpr CallbackDomain kDriverApi = 1;
inline constexpr CallbackDomain kRuntimeApi = 2;
inline constexpr int kApiEnter = 0;

struct CallbackData {
  int site;
  const char* function_name;  // a constant of the library's
};

using Subscriber = void*;
using Callback = void (*)(void* user, CallbackDomain domain, uint32_t id, const void* data);

/// Of cuptiSubscribe_v2, which names the subscriber that is there already.
struct SubscriberParams {
  size_t struct_size;
  const char* name;
  char* old_name;
  size_t old_name_size;
};
inline constexpr size_t kOldNameSizeMin = 64;

// --- The CUDA driver ---

using CudaResult = int;
inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaOutOfMemory = 2;
inline constexpr CudaResult kCudaNotInitialized = 3;

using Device = int;
using Context = void*;
using Stream = void*;
using DevicePointer = unsigned long long;
inline constexpr int kAttributeL2CacheBytes = 38;

}  // namespace kcoral::timing::abi
