// Values as a hostile runtime may send them: whatever the bytes, `wire_value` refuses them or writes strict JSON that
// uses each piece once. Reading its own output as JSON must find the same again, byte for byte.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "schema/json_reader.h"
#include "schema/limits.h"
#include "schema/value.h"

using namespace kcoral;
using namespace kcoral::schema;

namespace {

/// Pieces of 0, 1, 2, ... bytes of one memory; the first byte of an input says how many come with the value.
std::vector<Extent> make_extents(size_t count) {
  static const auto memory = *SealedMemory::copy_of(std::string(64, 'm'));
  std::vector<Extent> extents;
  uint64_t offset = 0;
  for (size_t i = 0; i < count; ++i) {
    extents.push_back({memory, offset, i});
    offset += i;
  }
  return extents;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto extents = make_extents(data[0] % 8);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<Part> parts(1);
  const auto value = wire_value(text, extents, parts);
  if (!value) {
    KCORAL_CHECK(value.error().kind == ErrorKind::kEngine);
    KCORAL_CHECK(is_valid_utf8(value.error().message));
    KCORAL_CHECK(parts.size() == 1);
    return 0;
  }
  KCORAL_CHECK(parts.size() == 1 + extents.size());
  JsonReader reader(*value, 2 * limits::kValueDepthMax + 3);
  const auto verbatim = reader.read_verbatim();
  KCORAL_CHECK(verbatim && *verbatim == *value && reader.expect_end());
  if (extents.empty()) {
    std::vector<Part> none;
    KCORAL_CHECK(wire_value(*value, {}, none).value_or("") == *value);
  }
  return 0;
}
