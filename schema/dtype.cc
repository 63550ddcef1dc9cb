#include "schema/dtype.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace kcoral::schema {
namespace {

constexpr std::array<Dtype, 17> kDtypes{{
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"int16", 2},
    {"uint16", 2},
    {"int32", 4},
    {"uint32", 4},
    {"int64", 8},
    {"uint64", 8},
    {"float16", 2},
    {"float32", 4},
    {"float64", 8},
    {"bfloat16", 2},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"complex64", 8},
    {"complex128", 16},
}};

}  // namespace

const Dtype* find_dtype(std::string_view name) {
  const auto* const found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& d) { return d.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

std::string_view dtype_names() {
  static const std::string kNames = [] {
    std::string names;
    for (const Dtype& dtype : kDtypes) {
      if (!names.empty()) names += ' ';
      names += dtype.name;
    }
    return names;
  }();
  return kNames;
}

std::optional<uint64_t> tensor_bytes(const Dtype& dtype, const std::vector<uint64_t>& shape) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t bytes = dtype.item_bytes;
  bool is_empty = false;
  for (const uint64_t dimension : shape) {
    if (dimension == 0) {
      is_empty = true;
      continue;
    }
    if (bytes > kMax / dimension) return std::nullopt;
    bytes *= dimension;
  }
  return is_empty ? 0 : bytes;
}

}  // namespace kcoral::schema
