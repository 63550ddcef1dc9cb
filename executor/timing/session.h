// One session of timing: a CUDA context, the memory that is flushed with, CUPTI's activities, and series of calls.
//
// What it changed is put back in `close`, in the opposite order, however far `open` came and whatever failed since.
// Not thread-safe: it belongs to the thread that opened it.
#pragma once

#include "executor/timing/activities.h"
#include "executor/timing/libraries.h"

namespace kcoral::timing {

class Session {
 public:
  bool open(const kcoral_timing_config& config, kcoral_timing_facts& facts, Outcome& outcome);
  bool start(uint32_t calls_max, bool synchronise, Outcome& outcome);
  bool mark();
  bool finish(uint32_t skip, kcoral_timing_series& series, uint64_t* spans_ns, size_t spans_size, Outcome& outcome);
  void close();

 private:
  bool take_context(Outcome& outcome);
  bool take_primary_context(Outcome& outcome);
  bool describe_device(kcoral_timing_facts& facts, Outcome& outcome);
  bool allocate_marks(bool flush_l2, Outcome& outcome);
  bool subscribe(const kcoral_timing_config& config, kcoral_timing_facts& facts, Outcome& outcome);
  bool enable_activities(Outcome& outcome);
  bool place_mark();
  void give_context_back();
  bool collect(Outcome& outcome);
  bool check_dropped(Outcome& outcome);

  static constexpr abi::ActivityKind kKinds[] = {abi::kConcurrentKernel, abi::kMemcpy, abi::kMemset, abi::kPeerMemcpy};
  static constexpr size_t kKindCount = sizeof kKinds / sizeof kKinds[0];

  abi::Context context_ = nullptr;
  abi::Device device_ = 0;
  bool retained_ = false;  // the context is the device's primary one, and was not current before
  abi::Stream stream_ = nullptr;
  abi::DevicePointer memory_ = 0;
  uint64_t mark_bytes_ = 0;
  bool flush_l2_ = false;
  abi::Subscriber subscriber_ = nullptr;
  bool buffers_open_ = false;
  size_t kinds_enabled_ = 0;

  Series series_;
  Outcome series_outcome_;  // why the series that runs has failed
  bool series_runs_ = false;
  bool synchronise_ = false;
  uint32_t marks_ = 0;
  uint32_t calls_max_ = 0;
};

}  // namespace kcoral::timing
