// Prometheus's text format, version 0.0.4: families of samples, each with its help and type.
//
// It promises: whatever a label's value contains, the text can be read, and a client's name can add no line to it.
// Not thread-safe.
//
// Source: https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/metrics.h"

namespace kcoral::gateway {

class Exposition {
 public:
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  enum class Type { kCounter, kGauge, kHistogram };

  /// Its samples follow. Requires: it was not begun before; `help` is one line without backslashes.
  void begin(std::string_view name, Type type, std::string_view help);

  void sample(double value);
  /// With one label, which is all that ours have. Requires: no two of a family have the same value.
  void sample(std::string_view label, std::string_view label_value, double value);
  void histogram(const HistogramView& view);

  /// A family of one sample.
  void counter(std::string_view name, std::string_view help, double value);
  void gauge(std::string_view name, std::string_view help, double value);

  std::string take() && { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

}  // namespace kcoral::gateway
