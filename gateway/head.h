// The head of a request: finding its end in what arrives, and checking it.
//
// Framing is decided here and only here, and only in one way: whatever two implementations might read differently
// (doubled, signed or malformed Content-Length, Content-Length beside Transfer-Encoding, another transfer coding than
// chunked, bare line feeds, folded lines, NUL) is refused, and the caller closes the connection after it has said so.
//
// Values that do not concern framing (Accept, Cookie, User-Agent, ...) are never looked at, so none of them is an
// error. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "gateway/http_types.h"

namespace kcoral::gateway {

/// Finds the end of a head in bytes that arrive piece by piece, looking at each byte once.
class HeadScanner {
 public:
  /// `bytes` begin with the head's first byte and grow from call to call. The head's length once it is complete,
  /// nullopt while it is not; an error for a line that does not end in CRLF or a head beyond limits::kHeadBytesMax.
  Result<std::optional<size_t>> scan(std::string_view bytes);
  void reset() { *this = HeadScanner(); }

 private:
  size_t scanned_ = 0;
  size_t line_begin_ = 0;
};

struct ParsedHead {
  RequestHead head;            // with an error: as far as it could be read, so that the answer can echo the id
  std::optional<Error> error;  // kParse; the connection cannot be used any further
};

/// Parses a complete head, up to and including its empty line.
ParsedHead parse_head(std::string_view bytes);

}  // namespace kcoral::gateway
