// Latencies of one measured series.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace kcoral::bench {

struct Series {
  std::vector<double> ms;  // one latency each
  double seconds = 0;      // wall time of the whole series

  double quantile(double q) const {
    if (ms.empty()) return 0;
    std::vector<double> sorted = ms;
    const auto index = static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5);
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(index), sorted.end());
    return sorted[index];
  }
  double per_second() const { return seconds > 0 ? static_cast<double>(ms.size()) / seconds : 0; }
};

class Stopwatch {
 public:
  double ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace kcoral::bench
