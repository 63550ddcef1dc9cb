// What executor/timing/cupti_abi.h declares by hand, against CUPTI's and the driver's own headers. All of it is checked
// while this is compiled; the test is there so that a run says that it was.
#include "executor/timing/cupti_abi.h"

#include <cuda.h>
#include <cupti.h>
#include <gtest/gtest.h>

#include <type_traits>

namespace kcoral::timing::abi {
namespace {

#define SAME_MEMBER(ours, our_member, theirs, their_member)                     \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                    sizeof(ours::our_member) == sizeof(theirs::their_member),   \
                #theirs "::" #their_member " lies elsewhere or has another size")
#define SAME_VALUE(ours, theirs) static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs))

// --- Records: every member that is declared ---

template <typename Theirs>
constexpr bool same_kernel() {
  SAME_MEMBER(KernelActivity, kind, Theirs, kind);
  SAME_MEMBER(KernelActivity, cache_config, Theirs, cacheConfig);
  SAME_MEMBER(KernelActivity, shared_memory_config, Theirs, sharedMemoryConfig);
  SAME_MEMBER(KernelActivity, registers_per_thread, Theirs, registersPerThread);
  SAME_MEMBER(KernelActivity, global_cache_requested, Theirs, partitionedGlobalCacheRequested);
  SAME_MEMBER(KernelActivity, global_cache_executed, Theirs, partitionedGlobalCacheExecuted);
  SAME_MEMBER(KernelActivity, start, Theirs, start);
  SAME_MEMBER(KernelActivity, end, Theirs, end);
  SAME_MEMBER(KernelActivity, completed, Theirs, completed);
  SAME_MEMBER(KernelActivity, device_id, Theirs, deviceId);
  SAME_MEMBER(KernelActivity, context_id, Theirs, contextId);
  SAME_MEMBER(KernelActivity, stream_id, Theirs, streamId);
  static_assert(offsetof(KernelActivity, grid) == offsetof(Theirs, gridX));
  static_assert(offsetof(KernelActivity, grid) + 8 == offsetof(Theirs, gridZ));
  static_assert(offsetof(KernelActivity, block) == offsetof(Theirs, blockX));
  static_assert(offsetof(KernelActivity, block) + 8 == offsetof(Theirs, blockZ));
  SAME_MEMBER(KernelActivity, static_shared_memory, Theirs, staticSharedMemory);
  SAME_MEMBER(KernelActivity, dynamic_shared_memory, Theirs, dynamicSharedMemory);
  SAME_MEMBER(KernelActivity, local_memory_per_thread, Theirs, localMemoryPerThread);
  SAME_MEMBER(KernelActivity, local_memory_total, Theirs, localMemoryTotal);
  SAME_MEMBER(KernelActivity, correlation_id, Theirs, correlationId);
  SAME_MEMBER(KernelActivity, grid_id, Theirs, gridId);
  SAME_MEMBER(KernelActivity, name, Theirs, name);
  return sizeof(KernelActivity) <= sizeof(Theirs);
}
static_assert(same_kernel<CUpti_ActivityKernel9>());
#if CUPTI_API_VERSION >= 130000
static_assert(same_kernel<CUpti_ActivityKernel10>());
#endif

/// What both kinds of copies have.
template <typename Ours, typename Theirs>
constexpr bool same_copy() {
  SAME_MEMBER(Ours, kind, Theirs, kind);
  SAME_MEMBER(Ours, copy_kind, Theirs, copyKind);
  SAME_MEMBER(Ours, source_kind, Theirs, srcKind);
  SAME_MEMBER(Ours, destination_kind, Theirs, dstKind);
  SAME_MEMBER(Ours, flags, Theirs, flags);
  SAME_MEMBER(Ours, bytes, Theirs, bytes);
  SAME_MEMBER(Ours, start, Theirs, start);
  SAME_MEMBER(Ours, end, Theirs, end);
  SAME_MEMBER(Ours, device_id, Theirs, deviceId);
  SAME_MEMBER(Ours, context_id, Theirs, contextId);
  SAME_MEMBER(Ours, stream_id, Theirs, streamId);
  SAME_MEMBER(Ours, correlation_id, Theirs, correlationId);
  return true;
}

template <typename Theirs>
constexpr bool same_memcpy() {
  return same_copy<MemcpyActivity, Theirs>() && sizeof(MemcpyActivity) <= sizeof(Theirs);
}
static_assert(same_memcpy<CUpti_ActivityMemcpy5>());
#if CUPTI_API_VERSION >= 130000
static_assert(same_memcpy<CUpti_ActivityMemcpy6>());
#endif

template <typename Theirs>
constexpr bool same_peer_memcpy() {
  SAME_MEMBER(PeerMemcpyActivity, source_device_id, Theirs, srcDeviceId);
  SAME_MEMBER(PeerMemcpyActivity, source_context_id, Theirs, srcContextId);
  SAME_MEMBER(PeerMemcpyActivity, destination_device_id, Theirs, dstDeviceId);
  SAME_MEMBER(PeerMemcpyActivity, destination_context_id, Theirs, dstContextId);
  return same_copy<PeerMemcpyActivity, Theirs>() && sizeof(PeerMemcpyActivity) <= sizeof(Theirs);
}
static_assert(same_peer_memcpy<CUpti_ActivityMemcpyPtoP4>());

template <typename Theirs>
constexpr bool same_memset() {
  SAME_MEMBER(MemsetActivity, kind, Theirs, kind);
  SAME_MEMBER(MemsetActivity, value, Theirs, value);
  SAME_MEMBER(MemsetActivity, bytes, Theirs, bytes);
  SAME_MEMBER(MemsetActivity, start, Theirs, start);
  SAME_MEMBER(MemsetActivity, end, Theirs, end);
  SAME_MEMBER(MemsetActivity, device_id, Theirs, deviceId);
  SAME_MEMBER(MemsetActivity, context_id, Theirs, contextId);
  SAME_MEMBER(MemsetActivity, stream_id, Theirs, streamId);
  SAME_MEMBER(MemsetActivity, correlation_id, Theirs, correlationId);
  return sizeof(MemsetActivity) <= sizeof(Theirs);
}
static_assert(same_memset<CUpti_ActivityMemset4>());

SAME_MEMBER(Activity, kind, CUpti_Activity, kind);

// --- Callbacks and subscribing ---

SAME_MEMBER(CallbackData, site, CUpti_CallbackData, callbackSite);
SAME_MEMBER(CallbackData, function_name, CUpti_CallbackData, functionName);
static_assert(sizeof(Subscriber) == sizeof(CUpti_SubscriberHandle));
static_assert(sizeof(CallbackDomain) == sizeof(CUpti_CallbackDomain) && sizeof(uint32_t) == sizeof(CUpti_CallbackId));
static_assert(sizeof(ActivityKind) == sizeof(CUpti_ActivityKind) && sizeof(CuptiResult) == sizeof(CUptiResult));
#if CUPTI_API_VERSION >= 130000
SAME_MEMBER(SubscriberParams, struct_size, CUpti_SubscriberParams, structSize);
SAME_MEMBER(SubscriberParams, name, CUpti_SubscriberParams, subscriberName);
SAME_MEMBER(SubscriberParams, old_name, CUpti_SubscriberParams, oldSubscriberName);
SAME_MEMBER(SubscriberParams, old_name_size, CUpti_SubscriberParams, oldSubscriberSize);
static_assert(sizeof(SubscriberParams) <= sizeof(CUpti_SubscriberParams));  // it says its size, and grows
SAME_VALUE(kOldNameSizeMin, CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN);
#endif

// --- Values ---

SAME_VALUE(kCuptiSuccess, CUPTI_SUCCESS);
SAME_VALUE(kCuptiMaxLimitReached, CUPTI_ERROR_MAX_LIMIT_REACHED);
SAME_VALUE(kCuptiNotCompatible, CUPTI_ERROR_NOT_COMPATIBLE);
SAME_VALUE(kCuptiNotInitialized, CUPTI_ERROR_NOT_INITIALIZED);
SAME_VALUE(kCuptiInsufficientPrivileges, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
SAME_VALUE(kCuptiMultipleSubscribers, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
SAME_VALUE(kMemcpy, CUPTI_ACTIVITY_KIND_MEMCPY);
SAME_VALUE(kMemset, CUPTI_ACTIVITY_KIND_MEMSET);
SAME_VALUE(kSerialKernel, CUPTI_ACTIVITY_KIND_KERNEL);
SAME_VALUE(kConcurrentKernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
SAME_VALUE(kPeerMemcpy, CUPTI_ACTIVITY_KIND_MEMCPY2);
SAME_VALUE(kFlushForced, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
SAME_VALUE(kRecordAlignment, ACTIVITY_RECORD_ALIGNMENT);
SAME_VALUE(kDriverApi, CUPTI_CB_DOMAIN_DRIVER_API);
SAME_VALUE(kRuntimeApi, CUPTI_CB_DOMAIN_RUNTIME_API);
SAME_VALUE(kApiEnter, CUPTI_API_ENTER);
SAME_VALUE(kCudaSuccess, CUDA_SUCCESS);
SAME_VALUE(kCudaOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(kCudaNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(kAttributeL2CacheBytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
static_assert(sizeof(CudaResult) == sizeof(CUresult) && sizeof(Device) == sizeof(CUdevice));
static_assert(sizeof(Context) == sizeof(CUcontext) && sizeof(Stream) == sizeof(CUstream));
static_assert(std::is_same_v<DevicePointer, CUdeviceptr>);

TEST(CuptiAbi, IsThatOfTheInstalledHeaders) { EXPECT_GE(CUPTI_API_VERSION, 18); }

}  // namespace
}  // namespace kcoral::timing::abi
