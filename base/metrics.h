// Figures that busy threads count and somebody reads now and then.
//
// It promises: counting costs an atomic addition or two and never waits; what is read has only grown since the last
// time. A histogram's figures are read one after another, so that one which is being counted may be in its buckets and
// not in its sum yet, or the other way round. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kcoral {

class Counter {
 public:
  void add(uint64_t count = 1) { value_.fetch_add(count, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// What a Histogram has counted.
struct HistogramView {
  std::vector<double> bounds_seconds;  // the upper ends of the buckets, each of which has its own
  std::vector<uint64_t> counts;        // of each bucket alone, and one more: what is above all bounds
  double sum_seconds = 0;
};

/// How long things took, in buckets.
class Histogram {
 public:
  /// Requires: `bounds_seconds` ascend, and outlive this.
  explicit Histogram(std::span<const double> bounds_seconds);

  /// What is negative counts as 0: a clock was set back.
  void observe(std::chrono::duration<double> took);
  HistogramView view() const;

 private:
  const std::span<const double> bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

/// For what a program waits for and takes: from a millisecond, which a trivial one takes, to an hour, which is as long
/// as one may.
inline constexpr double kProgramSecondsBounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                   1,     2.5,    5,     10,   30,    60,   300, 900,  3600};

}  // namespace kcoral
