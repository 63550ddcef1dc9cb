#include "gateway/exposition.h"

#include <fmt/format.h>

#include <utility>

namespace kcoral::gateway {
namespace {

std::string_view name_of(Exposition::Type type) {
  switch (type) {
    case Exposition::Type::kCounter:
      return "counter";
    case Exposition::Type::kGauge:
      return "gauge";
    case Exposition::Type::kHistogram:
      return "histogram";
  }
  return "untyped";
}

std::string escaped_label_value(std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\n') {
      escaped += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

}  // namespace

void Exposition::begin(std::string_view name, Type type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, name_of(type));
}

void Exposition::sample(double value) { text_ += fmt::format("{} {}\n", name_, value); }

void Exposition::sample(std::string_view label, std::string_view label_value, double value) {
  text_ += fmt::format("{}{{{}=\"{}\"}} {}\n", name_, label, escaped_label_value(label_value), value);
}

void Exposition::histogram(const HistogramView& view) {
  uint64_t count = 0;
  for (size_t i = 0; i < view.counts.size(); ++i) {
    count += view.counts[i];
    const bool is_last = i == view.bounds_seconds.size();
    text_ += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name_,
                         is_last ? "+Inf" : fmt::format("{}", view.bounds_seconds[i]), count);
  }
  text_ += fmt::format("{}_sum {}\n{}_count {}\n", name_, view.sum_seconds, name_, count);
}

void Exposition::counter(std::string_view name, std::string_view help, double value) {
  begin(name, Type::kCounter, help);
  sample(value);
}

void Exposition::gauge(std::string_view name, std::string_view help, double value) {
  begin(name, Type::kGauge, help);
  sample(value);
}

}  // namespace kcoral::gateway
