// Program texts as the database holds them: long ones compressed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kcoral::store {

/// Values are stored in the database.
enum class Codec { kPlain = 0, kZstd = 1 };

struct EncodedText {
  Codec codec = Codec::kPlain;
  std::string bytes;
};

/// Compresses from limits::kProgramCompressFromBytes on, if that makes it shorter.
EncodedText encode_text(std::string_view text);

/// kEngine if `bytes` do not decode to a text of `text_bytes`.
Result<std::string> decode_text(Codec codec, std::string_view bytes, uint64_t text_bytes);

}  // namespace kcoral::store
