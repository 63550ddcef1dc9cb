// The element types of tensors on the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace kcoral::schema {

struct Dtype {
  std::string_view name;  // as on the wire: "float16", "bfloat16", "float8_e4m3fn", ...
  uint32_t item_bytes;
};

/// nullptr for a name that the contract does not list.
const Dtype* find_dtype(std::string_view name);

/// All names, separated by spaces, for messages.
std::string_view dtype_names();

/// Bytes of a dense tensor; nullopt when the product overflows 63 bits. Dimensions of 0 are left out of that check, so
/// that it does not depend on their order and NumPy and PyTorch can make whatever passes it.
std::optional<uint64_t> tensor_bytes(const Dtype& dtype, const std::vector<uint64_t>& shape);

}  // namespace kcoral::schema
