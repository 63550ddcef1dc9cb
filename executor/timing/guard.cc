#include "executor/timing/guard.h"

#include "executor/timing/python_location.h"

namespace kcoral::timing {

kcoral_guard_mode Guard::begin(const char* cupti_candidates, const char* skipped_directory,
                               const char* own_directories) {
  copy_text(skipped_directory_, sizeof skipped_directory_, skipped_directory);
  copy_text(own_directories_, sizeof own_directories_, own_directories);
  first_ = {};
  calls_ = 0;
  is_first_taken_ = is_first_noted_ = false;
  bool is_watching = subscribe(cupti_candidates);
  // Once CUPTI has done whatever it does, and before calls are seen: this is one.
  was_initialised_ = driver.load_if_loaded() && driver.is_initialised();
  is_watching = is_watching && see_calls();
  if (is_watching) return KCORAL_GUARD_CALLS;
  return was_initialised_ ? KCORAL_GUARD_OFF : KCORAL_GUARD_INITIALISATION;
}

bool Guard::subscribe(const char* cupti_candidates) {
  Outcome ignored;
  const bool is_there = Driver::is_loaded() ? cupti.load(cupti_candidates, ignored) : cupti.load_if_loaded();
  if (is_there && cupti.subscribe(&subscriber_, &Guard::called, this) == abi::kCuptiSuccess) return true;
  subscriber_ = nullptr;
  return false;
}

bool Guard::see_calls() {
  if (cupti.enable_domain(1, subscriber_, abi::kDriverApi) == abi::kCuptiSuccess &&
      cupti.enable_domain(1, subscriber_, abi::kRuntimeApi) == abi::kCuptiSuccess) {
    return true;
  }
  cupti.unsubscribe(subscriber_);
  subscriber_ = nullptr;
  return false;
}

void Guard::called(void* guard, abi::CallbackDomain domain, uint32_t, const void* data) {
  if ((domain != abi::kDriverApi && domain != abi::kRuntimeApi) || data == nullptr) return;
  const auto& call = *static_cast<const abi::CallbackData*>(data);
  if (call.site == abi::kApiEnter) static_cast<Guard*>(guard)->note(call.function_name);
}

void Guard::note(const char* function) {
  __atomic_fetch_add(&calls_, 1, __ATOMIC_RELAXED);
  if (__atomic_exchange_n(&is_first_taken_, true, __ATOMIC_RELAXED)) return;
  copy_text(first_.call, sizeof first_.call, function != nullptr ? function : "a CUDA call");
  describe_location(skipped_directory_, own_directories_, first_.location, sizeof first_.location);
  __atomic_store_n(&is_first_noted_, true, __ATOMIC_RELEASE);
}

void Guard::end(kcoral_guard_report& report) {
  if (subscriber_ != nullptr) cupti.unsubscribe(subscriber_);
  subscriber_ = nullptr;
  report = {};
  report.calls = __atomic_load_n(&calls_, __ATOMIC_RELAXED);
  if (report.calls > 0) {
    if (__atomic_load_n(&is_first_noted_, __ATOMIC_ACQUIRE)) {
      const uint64_t calls = report.calls;
      report = first_;
      report.calls = calls;
    } else {  // another thread is about to
      copy_text(report.call, sizeof report.call, "a CUDA call");
      copy_text(report.location, sizeof report.location, "another thread");
    }
  } else if (!was_initialised_ && driver.load_if_loaded() && driver.is_initialised()) {
    report.calls = 1;
    copy_text(report.call, sizeof report.call, "cuInit");
    copy_text(report.location, sizeof report.location, "somewhere in this run");
  }
}

}  // namespace kcoral::timing
