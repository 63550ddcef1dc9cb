#include "executor/timing/session.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "executor/timing/activity_buffers.h"

namespace kcoral::timing {
namespace {

constexpr uint64_t kFlushBytes = 256ULL << 20;
constexpr uint64_t kMarkBytesSmall =
    1036;  // where nothing is flushed; no round number, so that few memsets look like it
constexpr uint64_t kWordBytes = 4;
// CUPTI may hand records over a moment after the GPU has finished.
constexpr int kFlushesMax = 20;

/// Whether a tool such as ncu or nsys has started this process: the driver loads them by this variable.
bool is_under_tool(const char* subscriber) {
  const char* injection = getenv("CUDA_INJECTION64_PATH");
  return (injection != nullptr && *injection != '\0') || strstr(subscriber, "Nsight") != nullptr;
}

/// Makes a context current while it lives, where another one is.
class CurrentContext {
 public:
  explicit CurrentContext(abi::Context wanted) {
    abi::Context current = nullptr;
    result_ = driver.context_get_current(&current);
    if (result_ != abi::kCudaSuccess || current == wanted) return;
    result_ = driver.context_push_current(wanted);
    pushed_ = result_ == abi::kCudaSuccess;
  }
  ~CurrentContext() {
    abi::Context popped = nullptr;
    if (pushed_) driver.context_pop_current(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  abi::CudaResult result() const { return result_; }

 private:
  abi::CudaResult result_ = abi::kCudaSuccess;
  bool pushed_ = false;
};

void ignore_callback(void*, abi::CallbackDomain, uint32_t, const void*) {}

/// What the subscriber that is there calls itself; empty if that cannot be found out.
void name_other_subscriber(char* name, size_t size) {
  name[0] = '\0';
  if (cupti.subscribe_v2 == nullptr) return;
  abi::SubscriberParams params{sizeof(abi::SubscriberParams), "kcoral", name, size};
  abi::Subscriber subscriber = nullptr;
  if (cupti.subscribe_v2(&subscriber, ignore_callback, nullptr, &params) == abi::kCuptiSuccess) {
    cupti.unsubscribe(subscriber);  // it was gone in the meantime
  }
}

}  // namespace

bool Session::open(const kcoral_timing_config& config, kcoral_timing_facts& facts, Outcome& outcome) {
  facts = {};
  stream_ = reinterpret_cast<abi::Stream>(config.stream);
  flush_l2_ = config.flush_l2 != 0;
  const bool opened = driver.load(outcome) && cupti.load(config.cupti_candidates, outcome) && take_context(outcome) &&
                      describe_device(facts, outcome) && subscribe(config, facts, outcome) &&
                      enable_activities(outcome) && allocate_marks(flush_l2_, outcome);
  if (!opened) {
    close();
    return false;
  }
  facts.flush_bytes = flush_l2_ ? mark_bytes_ : 0;
  cupti.get_version(&facts.cupti_version);
  return true;
}

bool Session::take_context(Outcome& outcome) {
  const auto started = driver.init(0);
  if (started == abi::kCudaNotInitialized) {  // which is said in forks alone
    return outcome.fail(KCORAL_TIMING_CUDA_ERROR,
                        "CUDA was started before this process was forked, and cannot be used in a fork: start the "
                        "process anew (multiprocessing with 'spawn', or subprocess), or measure in its parent");
  }
  if (started != abi::kCudaSuccess) {
    return driver.fail(outcome, KCORAL_TIMING_UNAVAILABLE, "there is no GPU that can be used here", started);
  }
  if (const auto result = driver.context_get_current(&context_); result != abi::kCudaSuccess) {
    return driver.fail(outcome, KCORAL_TIMING_CUDA_ERROR, "the current CUDA context cannot be asked for", result);
  }
  return context_ != nullptr || take_primary_context(outcome);
}

bool Session::take_primary_context(Outcome& outcome) {
  abi::Device first = 0;
  if (const auto result = driver.device_get(&first, 0); result != abi::kCudaSuccess) {
    return driver.fail(outcome, KCORAL_TIMING_UNAVAILABLE, "there is no GPU that can be used here", result);
  }
  abi::Context primary = nullptr;
  if (const auto result = driver.primary_context_retain(&primary, first); result != abi::kCudaSuccess) {
    return driver.fail(outcome, KCORAL_TIMING_CUDA_ERROR, "no CUDA context can be made", result);
  }
  context_ = primary;
  device_ = first;
  retained_ = true;
  const auto result = driver.context_set_current(context_);
  return result == abi::kCudaSuccess ||
         driver.fail(outcome, KCORAL_TIMING_CUDA_ERROR, "the CUDA context cannot be used", result);
}

bool Session::describe_device(kcoral_timing_facts& facts, Outcome& outcome) {
  if (const auto result = driver.context_get_device(&device_); result != abi::kCudaSuccess) {
    return driver.fail(outcome, KCORAL_TIMING_CUDA_ERROR, "the CUDA context cannot be used", result);
  }
  if (driver.device_get_pci_bus_id(facts.pci_bus_id, sizeof facts.pci_bus_id, device_) != abi::kCudaSuccess) {
    facts.pci_bus_id[0] = '\0';
  }
  return true;
}

/// The subscription itself is not needed: it keeps other clients out while we measure, and tells of those that are in.
bool Session::subscribe(const kcoral_timing_config& config, kcoral_timing_facts& facts, Outcome& outcome) {
  const auto result = cupti.subscribe(&subscriber_, ignore_callback, nullptr);
  if (result == abi::kCuptiSuccess) return true;
  subscriber_ = nullptr;
  if (result != abi::kCuptiMultipleSubscribers) return cupti.fail(outcome, "let anybody subscribe", result);
  char name[abi::kOldNameSizeMin * 2];
  name_other_subscriber(name, sizeof name);
  const char* shown = name[0] != '\0' ? name : "it has no name";
  if (is_under_tool(name)) {
    return outcome.fail(KCORAL_TIMING_UNAVAILABLE,
                        "this process runs under a tool such as ncu or nsys, which has taken CUPTI (%s): measure in a "
                        "process that it did not start",
                        shown);
  }
  if (config.others_are_idle == 0) {
    return outcome.fail(KCORAL_TIMING_OTHER_CLIENT,
                        "another profiler in this process has taken CUPTI (%s), which serves one at a time: end it, or "
                        "measure in a program of its own",
                        shown);
  }
  facts.other_client = 1;
  return true;
}

bool Session::enable_activities(Outcome& outcome) {
  const auto registered = cupti.activity_register_callbacks(&ActivityBuffers::requested, &ActivityBuffers::completed);
  if (registered != abi::kCuptiSuccess) return cupti.fail(outcome, "take buffers", registered);
  activity_buffers.open();
  buffers_open_ = true;
  for (const abi::ActivityKind kind : kKinds) {
    const auto result = cupti.activity_enable(kind);
    if (result != abi::kCuptiSuccess) return cupti.fail(outcome, "record GPU activities", result);
    ++kinds_enabled_;
  }
  return true;
}

bool Session::allocate_marks(bool flush_l2, Outcome& outcome) {
  mark_bytes_ = kMarkBytesSmall;
  uint64_t least_bytes = mark_bytes_;
  if (flush_l2) {
    int l2_bytes = 0;
    if (const auto result = driver.device_get_attribute(&l2_bytes, abi::kAttributeL2CacheBytes, device_);
        result != abi::kCudaSuccess) {
      return driver.fail(outcome, KCORAL_TIMING_CUDA_ERROR, "the size of the L2 cache cannot be asked for", result);
    }
    least_bytes = 2 * static_cast<uint64_t>(std::max(l2_bytes, 1 << 20)) / kWordBytes * kWordBytes;
    mark_bytes_ = std::max(kFlushBytes, least_bytes);
  }
  auto result = driver.memory_allocate(&memory_, mark_bytes_);
  if (result == abi::kCudaOutOfMemory && least_bytes < mark_bytes_) {
    mark_bytes_ = least_bytes;
    result = driver.memory_allocate(&memory_, mark_bytes_);
  }
  if (result == abi::kCudaSuccess) return true;
  memory_ = 0;
  const bool is_too_large = flush_l2 && result == abi::kCudaOutOfMemory;
  return driver.fail(outcome, KCORAL_TIMING_CUDA_ERROR,
                     is_too_large ? "too little GPU memory is free to flush the L2 cache: flush_l2 needs twice its size"
                                  : "no GPU memory can be allocated",
                     result);
}

bool Session::start(uint32_t calls_max, bool synchronise, Outcome& outcome) {
  activity_buffers.deliver_to(nullptr);
  series_outcome_.clear();
  marks_ = 0;
  calls_max_ = calls_max;
  synchronise_ = synchronise;
  series_runs_ = false;
  if (calls_max == 0 || calls_max > kCallsMax) {
    return outcome.fail(KCORAL_TIMING_MISUSE, "a series has 1 to %u calls, not %u", kCallsMax, calls_max);
  }
  if (!series_.start(calls_max, mark_bytes_, flush_l2_, outcome)) return false;
  size_t dropped_before = 0;
  cupti.activity_get_dropped(nullptr, 0, &dropped_before);  // which sets the count back
  activity_buffers.deliver_to(&series_);
  series_runs_ = true;
  return true;
}

bool Session::mark() {
  if (!series_runs_ || !series_outcome_.ok()) return false;
  if (marks_ == calls_max_) {
    return series_outcome_.fail(KCORAL_TIMING_MISUSE, "there are more calls than the %u that were announced",
                                calls_max_);
  }
  return place_mark();
}

bool Session::place_mark() {
  // The measured function may have made another context current; that stays its own affair.
  const CurrentContext current(context_);
  abi::CudaResult result = current.result();
  if (result == abi::kCudaSuccess && synchronise_) result = driver.context_synchronize();
  if (result == abi::kCudaSuccess) {
    result = driver.memset_d32_async(memory_, series_.mark_value(marks_), mark_bytes_ / kWordBytes, stream_);
  }
  if (result == abi::kCudaSuccess && synchronise_) result = driver.context_synchronize();
  if (result != abi::kCudaSuccess) {
    return driver.fail(series_outcome_, KCORAL_TIMING_CUDA_ERROR, "the GPU work failed", result);
  }
  ++marks_;
  return true;
}

bool Session::finish(uint32_t skip, kcoral_timing_series& series, uint64_t* spans_ns, size_t spans_size,
                     Outcome& outcome) {
  series = {};
  if (!series_runs_) return outcome.fail(KCORAL_TIMING_MISUSE, "no series was started");
  const uint32_t calls = marks_;
  const bool has_room = skip < calls && spans_size >= calls - skip;
  if (series_outcome_.ok() && has_room) place_mark();
  series_runs_ = false;
  if (!series_outcome_.ok()) return outcome.fail(series_outcome_.status(), "%s", series_outcome_.message());
  if (!has_room) {
    return outcome.fail(KCORAL_TIMING_MISUSE, "of %u calls %u are skipped, and there is room for %zu", calls, skip,
                        spans_size);
  }
  const bool collected = collect(outcome);
  activity_buffers.deliver_to(nullptr);
  return collected && series_.attribute(calls, skip, series, spans_ns, outcome);
}

bool Session::collect(Outcome& outcome) {
  const CurrentContext current(context_);
  if (const auto result = driver.context_synchronize(); result != abi::kCudaSuccess) {
    return driver.fail(outcome, KCORAL_TIMING_CUDA_ERROR, "the GPU work failed", result);
  }
  // A forced flush hands over what is not complete, too, which is then seen: so it comes last, and comes always.
  abi::CuptiResult flushed = abi::kCuptiSuccess;
  for (int i = 0; i < kFlushesMax && flushed == abi::kCuptiSuccess && activity_buffers.marks_seen() < marks_; ++i) {
    flushed = cupti.activity_flush_all(0);
  }
  if (flushed == abi::kCuptiSuccess) flushed = cupti.activity_flush_all(abi::kFlushForced);
  if (flushed != abi::kCuptiSuccess) return cupti.fail(outcome, "hand over its records", flushed);
  return check_dropped(outcome);
}

bool Session::check_dropped(Outcome& outcome) {
  size_t dropped = 0;
  const auto result = cupti.activity_get_dropped(nullptr, 0, &dropped);
  if (result != abi::kCuptiSuccess) return cupti.fail(outcome, "say whether records were dropped", result);
  if (dropped == 0) return true;
  return outcome.fail(KCORAL_TIMING_RECORDS_LOST, "CUPTI dropped %zu records of GPU activities", dropped);
}

void Session::close() {
  activity_buffers.deliver_to(nullptr);
  if (kinds_enabled_ > 0 && context_ != nullptr) {
    const CurrentContext current(context_);
    driver.context_synchronize();  // what the program left running; its errors are its own
  }
  while (kinds_enabled_ > 0) cupti.activity_disable(kKinds[--kinds_enabled_]);
  if (buffers_open_) {
    // What is left in CUPTI's hands would otherwise reach whoever uses it next.
    cupti.activity_flush_all(abi::kFlushForced);
    activity_buffers.shut();
    buffers_open_ = false;
  }
  if (subscriber_ != nullptr) cupti.unsubscribe(subscriber_);
  subscriber_ = nullptr;
  give_context_back();
  series_runs_ = false;
  series_.release();
}

void Session::give_context_back() {
  if (memory_ != 0) {
    const CurrentContext current(context_);
    driver.memory_free(memory_);
    memory_ = 0;
  }
  if (retained_) {
    abi::Context current = nullptr;
    if (driver.context_get_current(&current) == abi::kCudaSuccess && current == context_) {
      driver.context_set_current(nullptr);
    }
    driver.primary_context_release(device_);
    retained_ = false;
  }
  context_ = nullptr;
}

}  // namespace kcoral::timing
