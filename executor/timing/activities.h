// What CUPTI reported of one series of calls, and which call launched what.
//
// Theory of operation. A mark is a memset of `mark_bytes` bytes whose value counts the marks. Call i lies between the
// marks i and i + 1. Records come in any order, from whichever buffer is full, so they are kept until all have come.
// Then the marks must be there, each once, with rising correlation ids; every other activity belongs to the last mark
// whose id is lower than its own.
//
// Not thread-safe: ActivityBuffers calls `add` under its lock, and nothing comes any more when `attribute` is called.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "executor/timing/cupti_abi.h"
#include "executor/timing/message.h"

namespace kcoral::timing {

/// Of one series; with what is kept of each it bounds the memory (128 MiB).
inline constexpr size_t kActivitiesMax = size_t{4} << 20;
inline constexpr uint32_t kCallsMax = 2'000'000;

/// A growing array without exceptions; elements are plain data. Its memory lasts until `release`: it lives in what is
/// never destroyed, since CUPTI's threads may come by while the process ends.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  /// False when there is no memory; then nothing has changed.
  [[nodiscard]] bool push(const T& element) {
    if (size_ == capacity_ && !reserve(capacity_ == 0 ? 1024 : capacity_ * 2)) return false;
    data_[size_++] = element;
    return true;
  }
  /// `size` zeroed elements.
  [[nodiscard]] bool assign_zeroed(size_t size) {
    if (size > capacity_ && !reserve(size)) return false;
    size_ = size;
    for (size_t i = 0; i < size; ++i) data_[i] = T{};
    return true;
  }
  void clear() { size_ = 0; }
  void release() {
    free(data_);
    data_ = nullptr;
    size_ = capacity_ = 0;
  }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }

 private:
  bool reserve(size_t capacity) {
    auto* moved = static_cast<T*>(realloc(data_, capacity * sizeof(T)));
    if (moved == nullptr) return false;
    data_ = moved;
    capacity_ = capacity;
    return true;
  }

  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

/// The value of the first mark of all; later ones count on from it, over all series of the process, so that what one
/// left behind is not taken for another's. No memset of a program's is likely to have it, and the size of a mark
/// besides.
inline constexpr uint32_t kFirstMarkValue = 0x6b630000U;

class Series {
 public:
  /// Forgets everything; at most `calls_max` calls will come, and a mark more.
  bool start(uint32_t calls_max, uint64_t mark_bytes, bool marks_flush, Outcome& outcome);
  /// Of mark `index` of this series.
  uint32_t mark_value(uint32_t index) const { return first_mark_value_ + index; }
  /// Takes a record, unless it is of a kind that is none of ours.
  void add(const abi::Activity* record);
  /// Notes that a buffer held something unreadable.
  void note_unreadable() { unreadable_ = true; }
  uint32_t marks_seen() const { return marks_seen_; }

  /// Requires: `calls` + 1 marks were placed; `spans_ns` has room for `calls` - `skip`.
  bool attribute(uint32_t calls, uint32_t skip, kcoral_timing_series& series, uint64_t* spans_ns, Outcome& outcome);

  void release();

 private:
  struct Mark {
    uint32_t correlation_id;
    uint32_t times_seen;
    uint64_t start, end;
  };
  struct Kept {
    uint32_t correlation_id;
    uint64_t start, end;
    uint64_t fingerprint;  // what it is, without when and where
  };
  struct Call {
    uint64_t first_start, last_end;
    uint64_t fingerprint;  // of all its activities, in whatever order
    uint64_t activities;
  };

  void retire_marks();
  bool is_mark(const abi::MemsetActivity& memset) const;
  void keep(uint32_t correlation_id, uint64_t start, uint64_t end, uint64_t fingerprint);
  bool check_marks(uint32_t marks, Outcome& outcome) const;
  bool check_records(Outcome& outcome) const;
  void assign_to_calls(uint32_t calls);
  /// How many of the first `marks` marks have a lower id.
  uint32_t marks_before(uint32_t correlation_id, uint32_t marks) const;
  bool overlaps(uint32_t call, uint32_t calls) const;

  Array<Mark> marks_;
  Array<Kept> kept_;
  Array<Call> calls_;
  uint32_t first_mark_value_ = kFirstMarkValue;
  uint64_t mark_bytes_ = 0;
  bool marks_flush_ = false;
  uint32_t marks_seen_ = 0;
  bool unreadable_ = false;
  bool too_many_ = false;
  bool no_memory_ = false;
  uint64_t untimed_ = 0;
};

}  // namespace kcoral::timing
