// Watches the CUDA calls of this process while a `cpu_only` function runs (contract section 3).
//
// Theory of operation. Where the driver is loaded, or CUPTI is, somebody here may use CUDA: a CUPTI subscription sees
// every call. Where neither is, subscribing would cost the loading of both, for the many programs that never touch a
// GPU; then it is only looked at in the end whether CUDA has become initialised, which is the first thing that any use
// of it does. So it is also where CUPTI is missing or taken, as long as CUDA was not in use before.
//
// `begin` and `end` come from one thread; calls are seen from all.
#pragma once

#include <pthread.h>

#include "executor/timing/libraries.h"

namespace kcoral::timing {

class Guard {
 public:
  kcoral_guard_mode begin(const char* cupti_candidates, const char* skipped_directory, const char* own_directories);
  void end(kcoral_guard_report& report);

 private:
  bool subscribe(const char* cupti_candidates);
  bool see_calls();
  static void called(void* guard, abi::CallbackDomain domain, uint32_t id, const void* data);
  void note(const char* function);

  static constexpr size_t kDirectoriesBytes = 4096;

  abi::Subscriber subscriber_ = nullptr;
  bool was_initialised_ = false;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;  // held for a moment only
  // Guarded by mutex_.
  kcoral_guard_report report_ = {};
  char skipped_directory_[kDirectoriesBytes] = {};
  char own_directories_[kDirectoriesBytes] = {};
};

}  // namespace kcoral::timing
