// GPUs that are not there: libcuda.so.1, libcupti.so.13 and libnvidia-ml.so.1 with as much in them as our own code asks
// for, so that it can be tested on machines without one.
//
// A test lets the loader find them (their directory in LD_LIBRARY_PATH, or loading them by path first), launches work
// with the functions below, and sees through `fake_gpu_state` what is left behind. Time is simulated: every call of the
// host takes 1 us, and work on a stream begins when the work before it there has ended. Device memory is memory of the
// process itself.
//
// The driver holds its callers to what a real one demands: nothing before cuInit (nor in a fork after it), a current
// context for whatever needs one, addresses that were allocated, each registered range unregistered once. It is
// stricter in one thing: the last release of a primary context aborts where something is still registered, or allocated
// in that context. CUDA_VISIBLE_DEVICES is obeyed.
//
// FAKE_GPU_LOG names a file to which the driver's calls that a test may want to see are appended, one line each.
// FAKE_GPU_DEVICES is how many devices there are (1). FAKE_GPU_CONFIG names a file that says it in full, is read
// whenever it matters, and may change meanwhile:
//
//   device minor=0 arch=9.0 mib=81920 used_mib=500 name=NVIDIA Fake
//   process 0 4242 100        of device 0, process 4242 with 100 MiB; "?" if the driver does not tell
//   fault CONTEXT_ERROR 2
//
// Then a device is there for a process if its node (/dev/nvidia0) is, which may be an ordinary file that everybody may
// open, and NVML in one process knows of the contexts in others: 300 MiB each, and what they have allocated.
//
// Faults that they can play, each an environment variable FAKE_GPU_<NAME> or a line of that file:
//
//   INIT_ERROR=n        cuInit fails with the error n (100: there is no device)
//   CONTEXT_ERROR=n     a new primary context cannot be made (2: out of memory)
//   MEMORY_BYTES=n      a device has no more memory than this
//   HOST_REGISTER_ERROR=n  memory of the host cannot be registered
//   COPY_ERROR=n        every copy fails
//   MEMSET_ERROR=n      placing a mark fails
//   SYNCHRONIZE_ERROR=n waiting for the GPU fails, as after a kernel that went wrong
//   SUBSCRIBER=name     another CUPTI client has subscribed, and calls itself so (a variable only)
//   SUBSCRIBE_ERROR=n   cuptiSubscribe fails otherwise
//   REGISTER_ERROR=n    CUPTI does not take the functions for buffers
//   ENABLE_ERROR=n      the last of the kinds cannot be enabled
//   FLUSH_ERROR=n       records cannot be flushed
//   DROPPED=n           every nth record is dropped, and counted
//   LOST=n              every nth record is lost without a word
//   TWICE=n             every nth record comes twice
//   UNTIMED=n           every nth record has no times
//   UNREADABLE=1        buffers hold something that is no record
//   SHUFFLED=seed       records come in any order
//   LATE=n              the first n flushes of a series bring nothing
//   FOREIGN=1           records of kinds that nobody asked for, and of calls before all others, come too
//   NVML_ERROR=n        NVML cannot be initialised
//   NVML_MEMORY_ERROR, NVML_PROCESSES_ERROR, NVML_UTILISATION_ERROR, NVML_TEMPERATURE_ERROR, NVML_CLOCK_ERROR=n
//                       NVML does not tell that of any device
//
// The libraries for CUPTI 12 in the directory `old` lack cuptiActivityFlushAll.
// Thread-safe: one lock over all.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// A kernel on a stream: 0 is the legacy default stream, others wait for nothing but themselves.
void fake_gpu_launch(const char* name, int grid, uint64_t duration_ns, uint64_t stream);
/// As `count` kernels of one graph: they have one correlation id.
void fake_gpu_launch_graph(const char* name, int count, uint64_t duration_ns, uint64_t stream);
void fake_gpu_copy(uint64_t bytes, uint64_t duration_ns, uint64_t stream);
void fake_gpu_copy_peer(uint64_t bytes, uint64_t duration_ns, uint64_t stream);
/// Fills device memory, but not before somebody waits for the context.
int fake_gpu_launch_fill(unsigned long long address, int byte, size_t bytes);
/// Memory of device 0 that belongs to no context.
int fake_gpu_allocate_from_pool(unsigned long long* address, size_t bytes);
void fake_gpu_memset(uint32_t value, uint64_t bytes, uint64_t duration_ns, uint64_t stream);
/// A call of the runtime's or the driver's that launches nothing.
void fake_gpu_call(const char* name, int is_runtime);
/// What fully initialises the fake, as a program that uses CUDA: cuInit and a current primary context.
void fake_gpu_use();
/// As if the measured function had made another context current.
void fake_gpu_use_other_context();
/// CUDA is as it was in the beginning: not initialised, no context current.
void fake_gpu_leave();

/// By name: "memory_bytes", "contexts" (references to the primary one), "current" (whether one is), "initialised",
/// "synchronisations", "marks"; of CUPTI "subscribers", "kinds", "domains", "buffers" (that it holds), "registered".
int64_t fake_gpu_state(const char* name);

// --- Between the libraries ---

/// What happens on the device or at an API call.
struct fake_gpu_event {
  int kind;  // an activity kind, or 0 for a call
  const char* name;
  int is_runtime;
  int grid;
  uint32_t value;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t correlation_id;
};
void fake_gpu_observe(void (*observer)(const fake_gpu_event* event));
/// CUPTI's part of fake_gpu_state; -1 for a name that it does not know.
int64_t fake_cupti_state(const char* name);
}

/// The value of a fault, 0 if it is not played.
int64_t fake_gpu_fault(const char* name);
