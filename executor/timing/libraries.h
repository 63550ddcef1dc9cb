// CUPTI and the CUDA driver, found at run time.
//
// Both are loaded at most once and stay loaded. Not thread-safe: called under the lock of whoever uses them.
#pragma once

#include "executor/timing/cupti_abi.h"
#include "executor/timing/message.h"

namespace kcoral::timing {

/// The driver's functions. All are there once `load` succeeded.
struct Driver {
  abi::CudaResult (*init)(unsigned flags);
  abi::CudaResult (*get_error_name)(abi::CudaResult, const char**);
  abi::CudaResult (*get_error_string)(abi::CudaResult, const char**);
  abi::CudaResult (*device_get)(abi::Device*, int ordinal);
  abi::CudaResult (*device_get_attribute)(int*, int attribute, abi::Device);
  abi::CudaResult (*device_get_pci_bus_id)(char*, int size, abi::Device);
  abi::CudaResult (*primary_context_retain)(abi::Context*, abi::Device);
  abi::CudaResult (*primary_context_release)(abi::Device);
  abi::CudaResult (*context_get_current)(abi::Context*);
  abi::CudaResult (*context_set_current)(abi::Context);
  abi::CudaResult (*context_push_current)(abi::Context);
  abi::CudaResult (*context_pop_current)(abi::Context*);
  abi::CudaResult (*context_get_device)(abi::Device*);
  abi::CudaResult (*context_synchronize)();
  abi::CudaResult (*memory_allocate)(abi::DevicePointer*, size_t);
  abi::CudaResult (*memory_free)(abi::DevicePointer);
  abi::CudaResult (*memset_d32_async)(abi::DevicePointer, unsigned value, size_t count, abi::Stream);

  /// Loads libcuda.so.1 if need be. Does not initialise CUDA.
  bool load(Outcome& outcome);
  /// Whether the process has loaded it, by whomever.
  static bool is_loaded();
  /// Takes the functions only if `is_loaded`.
  bool load_if_loaded();
  /// "CUDA_ERROR_LAUNCH_FAILED (unspecified launch failure)".
  bool fail(Outcome& outcome, kcoral_timing_status status, const char* what, abi::CudaResult result) const;
  /// Whether somebody called cuInit in this process. Initialises nothing.
  bool is_initialised() const;
};

struct Cupti {
  abi::CuptiResult (*get_version)(uint32_t*);
  abi::CuptiResult (*get_result_string)(abi::CuptiResult, const char**);
  abi::CuptiResult (*subscribe)(abi::Subscriber*, abi::Callback, void*);
  abi::CuptiResult (*subscribe_v2)(abi::Subscriber*, abi::Callback, void*, abi::SubscriberParams*);  // may be missing
  abi::CuptiResult (*unsubscribe)(abi::Subscriber);
  abi::CuptiResult (*enable_domain)(uint32_t enable, abi::Subscriber, abi::CallbackDomain);
  abi::CuptiResult (*activity_enable)(abi::ActivityKind);
  abi::CuptiResult (*activity_disable)(abi::ActivityKind);
  abi::CuptiResult (*activity_register_callbacks)(abi::BufferRequested, abi::BufferCompleted);
  abi::CuptiResult (*activity_get_next_record)(uint8_t* buffer, size_t valid_size, abi::Activity** record);
  abi::CuptiResult (*activity_get_dropped)(abi::Context, uint32_t stream_id, size_t* dropped);
  abi::CuptiResult (*activity_flush_all)(uint32_t flag);

  /// Takes the copy that the process has loaded, else the first of `candidates` (one a line) that can be.
  bool load(const char* candidates, Outcome& outcome);
  /// Takes the functions only if the process has loaded a copy.
  bool load_if_loaded();
  bool fail(Outcome& outcome, const char* what, abi::CuptiResult result) const;
  /// The name of a result; never null.
  const char* name_of(abi::CuptiResult result) const;
};

/// Both of this process. A function that is null was not looked for yet, but for `subscribe_v2`.
extern Driver driver;
extern Cupti cupti;

}  // namespace kcoral::timing
