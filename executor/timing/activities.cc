#include "executor/timing/activities.h"

#include <algorithm>

namespace kcoral::timing {
namespace {

// Times of the GPU's front end and of its kernels come from different places, and differ by less than this.
constexpr uint64_t kOverlapToleranceNs = 500;

/// FNV-1a.
class Fingerprint {
 public:
  Fingerprint& add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<uint8_t>(number >> shift));
    return *this;
  }
  Fingerprint& add(const char* text) {
    for (; text != nullptr && *text != '\0'; ++text) byte(static_cast<uint8_t>(*text));
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  void byte(uint8_t next) { value_ = (value_ ^ next) * 0x100000001b3ULL; }
  uint64_t value_ = 0xcbf29ce484222325ULL;
};

uint64_t fingerprint_of(const abi::KernelActivity& kernel) {
  Fingerprint fingerprint;
  fingerprint.add(uint64_t{abi::kConcurrentKernel}).add(kernel.name);
  for (int i = 0; i < 3; ++i) {
    fingerprint.add(static_cast<uint64_t>(kernel.grid[i])).add(static_cast<uint64_t>(kernel.block[i]));
  }
  return fingerprint.value();
}

template <typename Copy>
uint64_t fingerprint_of_copy(const Copy& copy) {
  return Fingerprint().add(static_cast<uint64_t>(copy.kind)).add(copy.copy_kind).add(copy.bytes).value();
}

}  // namespace

bool Series::start(uint32_t calls_max, uint64_t mark_bytes, bool marks_flush, Outcome& outcome) {
  retire_marks();
  kept_.clear();
  mark_bytes_ = mark_bytes;
  marks_flush_ = marks_flush;
  marks_seen_ = 0;
  unreadable_ = too_many_ = no_memory_ = false;
  untimed_ = 0;
  if (marks_.assign_zeroed(size_t{calls_max} + 1) && calls_.assign_zeroed(calls_max)) return true;
  return outcome.fail(KCORAL_TIMING_MISUSE, "there is no memory for a series of %u calls", calls_max);
}

void Series::add(const abi::Activity* record) {
  switch (record->kind) {
    case abi::kConcurrentKernel:
    case abi::kSerialKernel: {
      const auto& kernel = *reinterpret_cast<const abi::KernelActivity*>(record);
      keep(kernel.correlation_id, kernel.start, kernel.end, fingerprint_of(kernel));
      break;
    }
    case abi::kMemcpy: {
      const auto& copy = *reinterpret_cast<const abi::MemcpyActivity*>(record);
      keep(copy.correlation_id, copy.start, copy.end, fingerprint_of_copy(copy));
      break;
    }
    case abi::kPeerMemcpy: {
      const auto& copy = *reinterpret_cast<const abi::PeerMemcpyActivity*>(record);
      keep(copy.correlation_id, copy.start, copy.end, fingerprint_of_copy(copy));
      break;
    }
    case abi::kMemset: {
      const auto& memset = *reinterpret_cast<const abi::MemsetActivity*>(record);
      if (is_mark(memset)) {
        Mark& mark = marks_[memset.value - mark_value(0)];
        if (mark.times_seen++ == 0) ++marks_seen_;
        mark.correlation_id = memset.correlation_id;
        mark.start = memset.start;
        mark.end = memset.end;
        break;
      }
      const uint64_t fingerprint =
          Fingerprint().add(uint64_t{abi::kMemset}).add(memset.value).add(memset.bytes).value();
      keep(memset.correlation_id, memset.start, memset.end, fingerprint);
      break;
    }
    default:
      break;  // a kind that somebody else has enabled
  }
}

bool Series::is_mark(const abi::MemsetActivity& memset) const {
  return memset.bytes == mark_bytes_ && memset.value - mark_value(0) < marks_.size();
}

void Series::keep(uint32_t correlation_id, uint64_t start, uint64_t end, uint64_t fingerprint) {
  if (start == 0 || end < start) {
    ++untimed_;
  } else if (kept_.size() == kActivitiesMax) {
    too_many_ = true;
  } else if (!kept_.push({correlation_id, start, end, fingerprint})) {
    no_memory_ = true;
  }
}

bool Series::check_records(Outcome& outcome) const {
  if (too_many_) {
    return outcome.fail(KCORAL_TIMING_MISUSE,
                        "the calls launched more than %zu GPU activities in all: fewer calls are needed, as `warmup` "
                        "and `repeat` set them",
                        kActivitiesMax);
  }
  if (no_memory_) return outcome.fail(KCORAL_TIMING_RECORDS_LOST, "there is no memory for what CUPTI reports");
  if (unreadable_) return outcome.fail(KCORAL_TIMING_RECORDS_LOST, "CUPTI reported something that cannot be read");
  if (untimed_ > 0) {
    return outcome.fail(KCORAL_TIMING_RECORDS_LOST, "CUPTI could not take the time of %llu GPU activities",
                        static_cast<unsigned long long>(untimed_));
  }
  return true;
}

bool Series::check_marks(uint32_t marks, Outcome& outcome) const {
  for (uint32_t i = 0; i < marks; ++i) {
    if (marks_[i].times_seen == 0) {
      return outcome.fail(KCORAL_TIMING_RECORDS_LOST,
                          "CUPTI did not report everything: %u of %u marks between the calls are missing",
                          marks - std::min(marks, marks_seen_), marks);
    }
    const bool is_in_order = i == 0 || marks_[i].correlation_id > marks_[i - 1].correlation_id;
    if (marks_[i].times_seen > 1 || !is_in_order) {
      return outcome.fail(KCORAL_TIMING_RECORDS_LOST, "CUPTI contradicts itself: mark %u was reported %s", i,
                          is_in_order ? "more than once" : "out of order");
    }
    if (marks_[i].start == 0 || marks_[i].end < marks_[i].start) {
      return outcome.fail(KCORAL_TIMING_RECORDS_LOST, "CUPTI could not take the time of mark %u", i);
    }
  }
  return true;
}

uint32_t Series::marks_before(uint32_t correlation_id, uint32_t marks) const {
  uint32_t low = 0, high = marks;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (marks_[middle].correlation_id < correlation_id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void Series::assign_to_calls(uint32_t calls) {
  for (const Kept& activity : kept_) {
    const uint32_t before = marks_before(activity.correlation_id, calls + 1);
    if (before == 0 || before > calls) continue;  // launched before the series, or after it
    Call& call = calls_[before - 1];
    call.first_start = call.activities == 0 ? activity.start : std::min(call.first_start, activity.start);
    call.last_end = std::max(call.last_end, activity.end);
    call.fingerprint += activity.fingerprint;
    ++call.activities;
  }
}

/// Work on a stream that does not wait for the marks' runs beside a flush, or beside the call after it.
bool Series::overlaps(uint32_t call, uint32_t calls) const {
  const Call& own = calls_[call];
  if (own.activities == 0) return false;
  if (marks_flush_) {
    return marks_[call].end > own.first_start + kOverlapToleranceNs ||
           own.last_end > marks_[call + 1].start + kOverlapToleranceNs;
  }
  return call + 1 < calls && calls_[call + 1].activities > 0 &&
         own.last_end > calls_[call + 1].first_start + kOverlapToleranceNs;
}

bool Series::attribute(uint32_t calls, uint32_t skip, kcoral_timing_series& series, uint64_t* spans_ns,
                       Outcome& outcome) {
  series = {};
  series.calls = calls;
  series.stable = 1;
  if (!check_records(outcome) || !check_marks(calls + 1, outcome)) return false;
  assign_to_calls(calls);
  uint64_t end = marks_[calls].start;
  for (uint32_t i = 0; i < calls; ++i) {
    series.activities += calls_[i].activities;
    end = std::max(end, calls_[i].last_end);
  }
  series.elapsed_ns = end - marks_[0].start;
  for (uint32_t i = skip; i < calls; ++i) {
    const Call& call = calls_[i];
    spans_ns[i - skip] = call.activities == 0 ? 0 : std::max<uint64_t>(call.last_end - call.first_start, 1);
    series.empty += call.activities == 0;
    series.overlapping += overlaps(i, calls);
    if (call.fingerprint != calls_[skip].fingerprint || call.activities != calls_[skip].activities) series.stable = 0;
  }
  return true;
}

void Series::retire_marks() {
  first_mark_value_ += static_cast<uint32_t>(marks_.size());
  marks_.clear();
}

void Series::release() {
  retire_marks();
  marks_.release();
  kept_.release();
  calls_.release();
}

}  // namespace kcoral::timing
