/* The C interface of libkcoral_timing.so, which Python loads with ctypes: how long GPU work took (contract section 10),
 * and whether CUDA was used where a program had promised not to (section 3, `cpu_only`).
 *
 * Theory of operation (ARCHITECTURE.md, "Timing and the guard"). One session at a time measures in series of calls.
 * Before each call the caller places a mark: a memset of our own, with a value that counts the marks, which is the L2
 * flush itself or a tiny one. CUPTI reports every kernel, copy and memset with its times on the GPU and the number of
 * the API call that launched it. Those numbers only grow, so what lies between two marks was launched by the call
 * between them: from whatever thread, on whatever stream, through a graph or not. Nothing is synchronised between mark
 * and call, unless `synchronise` asks for it; whether that was needed can be seen from the times (`overlapping`).
 *
 * Nothing is linked but libc: CUPTI, the driver and NVML are found in the process or loaded when they are needed. What
 * a session or guard changed in CUPTI is put back when it ends. CUPTI can not be told to forget the functions that
 * take its buffers, so those stay; they decline every buffer while no session is open.
 *
 * This runs in the program's own process, which can patch, skip or deceive it: it is made to be right and to do no
 * harm, not to be safe from the program that is measured.
 *
 * Threads. A session belongs to the thread that opened it; the work that it measures may come from any. Opening one
 * and beginning a guard exclude each other. kcoral_device_state may be called from one thread at a time.
 */
#ifndef KCORAL_EXECUTOR_TIMING_TIMING_H_
#define KCORAL_EXECUTOR_TIMING_TIMING_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the functions below return that take `error`, which gets a message for people unless it is KCORAL_TIMING_OK. */
enum kcoral_timing_status {
  KCORAL_TIMING_OK = 0,
  KCORAL_TIMING_UNAVAILABLE = 1,  /* the environment lacks something: a GPU, CUPTI, its permission */
  KCORAL_TIMING_OTHER_CLIENT = 2, /* another user of CUPTI is at work, or may be */
  KCORAL_TIMING_CUDA_ERROR = 3,   /* the driver reported one, which the measured work may have caused */
  KCORAL_TIMING_MISUSE = 4,       /* the caller: a session within a session, too many marks or activities */
  KCORAL_TIMING_RECORDS_LOST = 5  /* CUPTI did not report everything, or contradicted itself */
};

/* ---- Timing ---- */

struct kcoral_timing_config {
  const char* cupti_candidates; /* where to look when no CUPTI is loaded: names or paths, one a line, in order */
  uint64_t stream;              /* CUstream on which marks are placed; 0: the legacy default stream */
  uint32_t flush_l2;            /* marks flush the L2 cache */
  uint32_t others_are_idle;     /* another CUPTI client that is subscribed is known not to be at work now */
};

struct kcoral_timing_facts {
  uint64_t flush_bytes;   /* 0 without flush_l2 */
  uint32_t other_client;  /* there is one, idle: its traces of having been at work may slow kernels down */
  uint32_t cupti_version; /* as cuptiGetVersion says */
  char pci_bus_id[32];    /* of the device that is measured */
};

struct kcoral_timing_series {
  uint32_t calls;       /* as many as there were marks */
  uint32_t empty;       /* of those after `skip`: how many launched nothing */
  uint32_t stable;      /* those after `skip` launched the same activities, in whatever order */
  uint32_t overlapping; /* of those after `skip`: whose work ran beside a flush, or beside the next call */
  uint64_t activities;  /* of all calls */
  uint64_t elapsed_ns;  /* on the GPU, from the first mark to the last, whatever lies between */
};

/* Prepares the current CUDA context (the primary one of the first device if there is none) and CUPTI. On failure
 * everything is as it was. */
int kcoral_timing_open(const struct kcoral_timing_config* config, struct kcoral_timing_facts* facts, char* error,
                       size_t error_size);

/* Begins a series of at most `calls_max` calls. `synchronise`: wait for the GPU before and after each mark. */
int kcoral_timing_start(uint32_t calls_max, uint32_t synchronise, char* error, size_t error_size);

/* Places the mark of the next call. 0, or not: then the series has failed, and kcoral_timing_finish says why. */
int kcoral_timing_mark(void);

/* Places the last mark, waits for the GPU and says what the calls did. `spans_ns[i]` is the time from the start of the
 * first to the end of the last activity of call `skip` + i, or 0 if it launched none. Requires: there is room for the
 * calls after `skip`. */
int kcoral_timing_finish(uint32_t skip, struct kcoral_timing_series* series, uint64_t* spans_ns, size_t spans_size,
                         char* error, size_t error_size);

/* Puts everything back. Does nothing where no session is open. */
void kcoral_timing_close(void);

/* ---- The device, from NVML ---- */

struct kcoral_device_facts {
  int32_t sm_clock_mhz; /* this and the others: -1 where it cannot be known */
  int32_t temperature_c;
  int32_t processes; /* on the device, this one included */
  int32_t has_clock_event_reasons;
  uint64_t clock_event_reasons; /* NVML's bits: why clocks are not higher */
};

/* Where NVML cannot be loaded or does not answer nothing is known. The first call initialises it for the process. */
void kcoral_device_state(const char* pci_bus_id, struct kcoral_device_facts* facts);

/* ---- The guard ---- */

enum kcoral_guard_mode {
  KCORAL_GUARD_CALLS = 0,          /* every driver and runtime call is seen */
  KCORAL_GUARD_INITIALISATION = 1, /* it is seen whether CUDA gets initialised, as at its first use in a process */
  KCORAL_GUARD_OFF = 2             /* nothing is seen: CUDA is in use already, and CUPTI is missing or taken */
};

struct kcoral_guard_report {
  uint64_t calls;      /* driver and runtime calls, those within others included */
  char call[128];      /* the first one's name; empty if there was none */
  char location[1024]; /* of the first: "file:line" of the Python code that made it, or what else is known */
};

/* Watches CUDA calls of this process, from all its threads, until kcoral_guard_end. Neither initialises CUDA. Processes
 * that the program starts are not watched. `own_directories`: one a line; the location is the innermost line of Python
 * in a file below one of them, else the innermost one in a file that is not below `skipped_directory`.
 * Returns a kcoral_guard_mode; KCORAL_GUARD_OFF also where a session is open or a guard has begun. */
int kcoral_guard_begin(const char* cupti_candidates, const char* skipped_directory, const char* own_directories);

/* Ends it. `report` is empty where none had begun. */
void kcoral_guard_end(struct kcoral_guard_report* report);

#ifdef __cplusplus
}
#endif

#endif /* KCORAL_EXECUTOR_TIMING_TIMING_H_ */
