// Numbers as clients spell them, whatever the locale says. Pure functions.
#pragma once

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <type_traits>

namespace kcoral::gateway {

/// A whole decimal number of that type, without anything around it.
template <typename T>
std::optional<T> whole_number(std::string_view text) {
  static_assert(std::is_integral_v<T>);
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A finite decimal number, without anything around it.
inline std::optional<double> finite_number(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace kcoral::gateway
