#include "executor/timing/guard.h"

#include "executor/timing/lock.h"
#include "executor/timing/python_location.h"

namespace kcoral::timing {

kcoral_guard_mode Guard::begin(const char* cupti_candidates, const char* skipped_directory,
                               const char* own_directories) {
  {
    const Lock lock(mutex_);
    report_ = {};
    copy_text(skipped_directory_, sizeof skipped_directory_, skipped_directory);
    copy_text(own_directories_, sizeof own_directories_, own_directories);
  }
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
  char skipped[kDirectoriesBytes], own[kDirectoriesBytes];
  char location[sizeof report_.location];
  {
    const Lock lock(mutex_);
    if (report_.calls++ > 0) return;
    copy_text(report_.call, sizeof report_.call, function != nullptr ? function : "a CUDA call");
    // Until the place is known, for whoever ends the guard meanwhile.
    copy_text(report_.location, sizeof report_.location, "another thread");
    copy_text(skipped, sizeof skipped, skipped_directory_);
    copy_text(own, sizeof own, own_directories_);
  }
  // Without the lock: asking the interpreter may run code of the program's, which may call CUDA.
  describe_location(skipped, own, location, sizeof location);
  const Lock lock(mutex_);
  copy_text(report_.location, sizeof report_.location, location);
}

void Guard::end(kcoral_guard_report& report) {
  if (subscriber_ != nullptr) cupti.unsubscribe(subscriber_);
  subscriber_ = nullptr;
  {
    const Lock lock(mutex_);
    report = report_;
  }
  if (report.calls == 0 && !was_initialised_ && driver.load_if_loaded() && driver.is_initialised()) {
    report.calls = 1;
    copy_text(report.call, sizeof report.call, "cuInit");
    copy_text(report.location, sizeof report.location, "somewhere in this run");
  }
}

}  // namespace kcoral::timing
