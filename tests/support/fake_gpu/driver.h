// What the files of the fake libcuda.so.1 share: fake_cuda.cc has contexts and time, fake_memory.cc memory and copies.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "executor/timing/cupti_abi.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace kcoral::fake_gpu {

using timing::abi::CudaResult;

enum Error : CudaResult {
  kInvalidValue = 1,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kIllegalAddress = 700,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kNotSupported = 801,
};

struct DriverContext {
  int device = 0;
  std::atomic<int> references{0};  // it lives while there are any
};

/// Over all that is not atomic. Taken by whoever is called from outside, and by `call` and `launch`.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

inline CudaResult fault(const char* name) { return static_cast<CudaResult>(fake_gpu_fault(name)); }

/// In this very process: a fork of one that was has to start anew, and cannot.
bool is_initialised();
CudaResult require_context();
/// The calling thread's; null without one.
DriverContext* current_context();
/// Of a device, null for another number.
DriverContext* primary_context(int device);

/// A call of the API: takes a moment, and CUPTI hears of it. Returns its correlation id.
uint32_t call(const char* name, bool is_runtime = false);
/// A call that puts work on a stream.
void launch(const char* api, fake_gpu_event event, uint64_t duration_ns, uint64_t stream);

/// A line in the log. The format takes up to two numbers.
void note(const char* format, unsigned long long a = 0, unsigned long long b = 0);

// --- of fake_memory.cc; with the lock held ---

uint64_t memory_bytes(int device);
/// Whether anything is registered, or allocated in this context.
bool uses_memory(const DriverContext* context);
void fill_what_was_launched();

/// With the lock held: how much memory a device has in use by this process has changed.
void show_use(int device);

}  // namespace kcoral::fake_gpu
