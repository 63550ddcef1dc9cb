#include "base/metrics.h"

#include <algorithm>

namespace kcoral {

Histogram::Histogram(std::span<const double> bounds_seconds)
    : bounds_(bounds_seconds), counts_(bounds_seconds.size() + 1) {}

void Histogram::observe(std::chrono::duration<double> took) {
  const double seconds = std::max(0.0, took.count());
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), seconds) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(seconds, std::memory_order_relaxed);
}

HistogramView Histogram::view() const {
  HistogramView view{{bounds_.begin(), bounds_.end()}, {}, sum_.load(std::memory_order_relaxed)};
  for (const auto& count : counts_) view.counts.push_back(count.load(std::memory_order_relaxed));
  return view;
}

}  // namespace kcoral
