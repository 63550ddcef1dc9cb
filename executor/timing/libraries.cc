#include "executor/timing/libraries.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace kcoral::timing {
namespace {

constexpr const char* kDriverName = "libcuda.so.1";
// Newest first: a process may hold two, of which the older one is not the one that PyTorch brought along.
constexpr const char* kCuptiNames[] = {"libcupti.so.13", "libcupti.so.12"};
constexpr size_t kPathBytesMax = 4096;

/// Looks symbols up and remembers the first that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void take(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr && missing_ == nullptr) missing_ = name;
  }
  template <typename Function>
  void take_if_there(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

const char* take_driver(void* library, Driver& functions) {
  Symbols symbols(library);
  symbols.take(functions.init, "cuInit");
  symbols.take(functions.get_error_name, "cuGetErrorName");
  symbols.take(functions.get_error_string, "cuGetErrorString");
  symbols.take(functions.device_get, "cuDeviceGet");
  symbols.take(functions.device_get_attribute, "cuDeviceGetAttribute");
  symbols.take(functions.device_get_pci_bus_id, "cuDeviceGetPCIBusId");
  symbols.take(functions.primary_context_retain, "cuDevicePrimaryCtxRetain");
  symbols.take(functions.primary_context_release, "cuDevicePrimaryCtxRelease_v2");
  symbols.take(functions.context_get_current, "cuCtxGetCurrent");
  symbols.take(functions.context_set_current, "cuCtxSetCurrent");
  symbols.take(functions.context_push_current, "cuCtxPushCurrent_v2");
  symbols.take(functions.context_pop_current, "cuCtxPopCurrent_v2");
  symbols.take(functions.context_get_device, "cuCtxGetDevice");
  symbols.take(functions.context_synchronize, "cuCtxSynchronize");
  symbols.take(functions.memory_allocate, "cuMemAlloc_v2");
  symbols.take(functions.memory_free, "cuMemFree_v2");
  symbols.take(functions.memset_d32_async, "cuMemsetD32Async");
  return symbols.missing();
}

const char* take_cupti(void* library, Cupti& functions) {
  Symbols symbols(library);
  symbols.take(functions.get_version, "cuptiGetVersion");
  symbols.take(functions.get_result_string, "cuptiGetResultString");
  symbols.take(functions.subscribe, "cuptiSubscribe");
  symbols.take_if_there(functions.subscribe_v2, "cuptiSubscribe_v2");
  symbols.take(functions.unsubscribe, "cuptiUnsubscribe");
  symbols.take(functions.enable_domain, "cuptiEnableDomain");
  symbols.take(functions.activity_enable, "cuptiActivityEnable");
  symbols.take(functions.activity_disable, "cuptiActivityDisable");
  symbols.take(functions.activity_register_callbacks, "cuptiActivityRegisterCallbacks");
  symbols.take(functions.activity_get_next_record, "cuptiActivityGetNextRecord");
  symbols.take(functions.activity_get_dropped, "cuptiActivityGetNumDroppedRecords");
  symbols.take(functions.activity_flush_all, "cuptiActivityFlushAll");
  return symbols.missing();
}

void* loaded_cupti() {
  for (const char* name : kCuptiNames) {
    if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return library;
  }
  return nullptr;
}

/// The first of `candidates` that loads. `tried` is for people.
void* load_first(const char* candidates) {
  for (const char* line = candidates; line != nullptr && *line != '\0';) {
    const char* end = strchrnul(line, '\n');
    const auto length = static_cast<size_t>(end - line);
    if (length > 0 && length < kPathBytesMax) {
      char path[kPathBytesMax];
      memcpy(path, line, length);
      path[length] = '\0';
      if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL)) return library;
    }
    line = *end == '\0' ? end : end + 1;
  }
  return nullptr;
}

}  // namespace

Driver driver;
Cupti cupti;

bool Driver::load(Outcome& outcome) {
  if (memset_d32_async != nullptr) return true;
  void* library = dlopen(kDriverName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return outcome.fail(KCORAL_TIMING_UNAVAILABLE, "there is no GPU here: the CUDA driver cannot be loaded (%s)",
                        dlerror());
  }
  Driver found{};
  if (const char* missing = take_driver(library, found)) {
    return outcome.fail(KCORAL_TIMING_UNAVAILABLE, "the CUDA driver is too old: it has no %s", missing);
  }
  *this = found;
  return true;
}

bool Driver::is_loaded() {
  void* library = dlopen(kDriverName, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);  // the count only: it stays
  return true;
}

bool Driver::load_if_loaded() {
  Outcome ignored;
  return is_loaded() && load(ignored);
}

bool Driver::is_initialised() const {
  abi::Context context = nullptr;
  return context_get_current(&context) != abi::kCudaNotInitialized;
}

bool Driver::fail(Outcome& outcome, kcoral_timing_status status, const char* what, abi::CudaResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  get_error_name(result, &name);
  get_error_string(result, &text);
  return outcome.fail(status, "%s: CUDA error %d: %s (%s)", what, result, name != nullptr ? name : "unknown",
                      text != nullptr ? text : "no description");
}

bool Cupti::load(const char* candidates, Outcome& outcome) {
  if (activity_flush_all != nullptr) return true;
  void* library = loaded_cupti();
  if (library == nullptr) library = load_first(candidates);
  if (library == nullptr) {
    return outcome.fail(KCORAL_TIMING_UNAVAILABLE,
                        "CUPTI is not installed in the server's Python or CUDA toolkit (libcupti.so.13 or "
                        "libcupti.so.12): install it with `pip install nvidia-cuda-cupti`, or as the toolkit's package "
                        "cuda-cupti");
  }
  Cupti found{};
  if (const char* missing = take_cupti(library, found)) {
    return outcome.fail(KCORAL_TIMING_UNAVAILABLE, "the installed CUPTI has no %s: version 12 or 13 is needed",
                        missing);
  }
  *this = found;
  return true;
}

bool Cupti::load_if_loaded() {
  void* library = loaded_cupti();
  if (library == nullptr) return false;
  dlclose(library);
  Outcome ignored;
  return load(nullptr, ignored);
}

const char* Cupti::name_of(abi::CuptiResult result) const {
  const char* name = nullptr;
  if (get_result_string(result, &name) != abi::kCuptiSuccess || name == nullptr) return "an unknown error";
  return name;
}

bool Cupti::fail(Outcome& outcome, const char* what, abi::CuptiResult result) const {
  const char* advice = "";
  if (result == abi::kCuptiNotCompatible || result == abi::kCuptiNotInitialized) {
    advice = "; its version may not fit the driver's";
  } else if (result == abi::kCuptiInsufficientPrivileges) {
    advice = "; the driver reserves profiling for the administrator";
  }
  return outcome.fail(KCORAL_TIMING_UNAVAILABLE, "CUPTI refused to %s: error %d, %s%s", what, result, name_of(result),
                      advice);
}

}  // namespace kcoral::timing
