// The C interface: one session or one guard at a time in a process.
#include "executor/timing/timing.h"

#include "executor/timing/guard.h"
#include "executor/timing/session.h"

#define KCORAL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using kcoral::timing::Guard;
using kcoral::timing::Outcome;
using kcoral::timing::Session;

enum class Use { kNone, kSession, kGuard };

Use use = Use::kNone;  // changes by atomic operations
Session session;
Guard guard;

bool claim(Use wanted) {
  Use expected = Use::kNone;
  return __atomic_compare_exchange_n(&use, &expected, wanted, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

void release() { __atomic_store_n(&use, Use::kNone, __ATOMIC_RELEASE); }

bool is_used_as(Use wanted) { return __atomic_load_n(&use, __ATOMIC_ACQUIRE) == wanted; }

bool check_session(Outcome& outcome) {
  return is_used_as(Use::kSession) || outcome.fail(KCORAL_TIMING_MISUSE, "no session is open");
}

}  // namespace

KCORAL_EXPORT int kcoral_timing_open(const kcoral_timing_config* config, kcoral_timing_facts* facts, char* error,
                                     size_t error_size) {
  Outcome outcome;
  if (!claim(Use::kSession)) {
    outcome.fail(KCORAL_TIMING_MISUSE, is_used_as(Use::kGuard)
                                           ? "this is a cpu_only run, which has no GPU"
                                           : "a measurement is going on in this process already: one at a time");
  } else if (!session.open(*config, *facts, outcome)) {
    release();
  }
  return outcome.give(error, error_size);
}

KCORAL_EXPORT int kcoral_timing_start(uint32_t calls_max, uint32_t synchronise, char* error, size_t error_size) {
  Outcome outcome;
  if (check_session(outcome)) session.start(calls_max, synchronise != 0, outcome);
  return outcome.give(error, error_size);
}

KCORAL_EXPORT int kcoral_timing_mark(void) {
  return is_used_as(Use::kSession) && session.mark() ? KCORAL_TIMING_OK : KCORAL_TIMING_MISUSE;
}

KCORAL_EXPORT int kcoral_timing_finish(uint32_t skip, kcoral_timing_series* series, uint64_t* spans_ns,
                                       size_t spans_size, char* error, size_t error_size) {
  Outcome outcome;
  if (check_session(outcome)) session.finish(skip, *series, spans_ns, spans_size, outcome);
  return outcome.give(error, error_size);
}

KCORAL_EXPORT void kcoral_timing_close(void) {
  if (!is_used_as(Use::kSession)) return;
  session.close();
  release();
}

KCORAL_EXPORT int kcoral_guard_begin(const char* cupti_candidates, const char* skipped_directory,
                                     const char* own_directories) {
  if (!claim(Use::kGuard)) return KCORAL_GUARD_OFF;
  // It has begun in any mode, so that `end` looks.
  return guard.begin(cupti_candidates, skipped_directory, own_directories);
}

KCORAL_EXPORT void kcoral_guard_end(kcoral_guard_report* report) {
  *report = {};
  if (!is_used_as(Use::kGuard)) return;
  guard.end(*report);
  release();
}
