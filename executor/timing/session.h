// One session of timing: a CUDA context, the memory that is flushed with, CUPTI's activities, and series of calls.
//
// It promises that what it changed is put back in `close`, in the opposite order, however far `open` came and whatever
// failed since; and that a series whose every activity is not accounted for is an error, not a figure.
// ARCHITECTURE.md, "Timing and the guard", has the theory; timing.h the C interface, which this does the work of.
// Not thread-safe: it belongs to the thread that opened it. What the measured calls launch may come from any thread.
#pragma once

#include "executor/timing/activities.h"
#include "executor/timing/libraries.h"

namespace kcoral::timing {

class Session {
 public:
  /// Takes the thread's current context, else the first device's primary one, which stays current until `close`; takes
  /// CUPTI and the memory that is flushed with. False: everything is as it was, and `outcome` says why.
  /// Requires: it is closed.
  bool open(const kcoral_timing_config& config, kcoral_timing_facts& facts, Outcome& outcome);

  /// Begins a series of at most `calls_max` calls; one that was begun before is forgotten. `synchronise`: the GPU is
  /// idle before and after each mark. Requires: it is open.
  bool start(uint32_t calls_max, bool synchronise, Outcome& outcome);

  /// Places the mark of the next call; waits for the GPU only in a series that synchronises. False: the series has
  /// failed, and `finish` says why.
  bool mark();

  /// Ends the series: places the last mark, waits for the GPU and for what CUPTI has to report, and writes the time of
  /// each call after the first `skip` to `spans_ns`. False, with `outcome`, where there are not more calls than `skip`
  /// or no room for their times, GPU work failed, or a record is missing.
  bool finish(uint32_t skip, kcoral_timing_series& series, uint64_t* spans_ns, size_t spans_size, Outcome& outcome);

  /// Puts everything back. Does nothing where it is closed.
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
