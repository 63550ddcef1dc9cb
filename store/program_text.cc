#include "store/program_text.h"

#include <zstd.h>

#include "schema/limits.h"

namespace kcoral::store {
namespace {

constexpr int kLevel = 1;  // programs are text: the fastest level already makes them several times shorter

}  // namespace

EncodedText encode_text(std::string_view text) {
  if (text.size() >= limits::kProgramCompressFromBytes) {
    std::string compressed(ZSTD_compressBound(text.size()), '\0');
    const size_t size = ZSTD_compress(compressed.data(), compressed.size(), text.data(), text.size(), kLevel);
    if (ZSTD_isError(size) == 0 && size < text.size()) {
      compressed.resize(size);
      compressed.shrink_to_fit();
      return {Codec::kZstd, std::move(compressed)};
    }
  }
  return {Codec::kPlain, std::string(text)};
}

Result<std::string> decode_text(Codec codec, std::string_view bytes, uint64_t text_bytes) {
  std::string text;
  switch (codec) {
    case Codec::kPlain:
      text = bytes;
      break;
    case Codec::kZstd: {
      text.resize(text_bytes);
      const size_t size = ZSTD_decompress(text.data(), text.size(), bytes.data(), bytes.size());
      if (ZSTD_isError(size) != 0) return fail(ErrorKind::kEngine, "a stored text: {}", ZSTD_getErrorName(size));
      text.resize(size);
      break;
    }
    default:
      return fail(ErrorKind::kEngine, "a stored text has the unknown codec {}", static_cast<int>(codec));
  }
  if (text.size() != text_bytes) {
    return fail(ErrorKind::kEngine, "a stored text has {} bytes instead of {}", text.size(), text_bytes);
  }
  return text;
}

}  // namespace kcoral::store
