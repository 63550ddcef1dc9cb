// The chunked transfer coding, decoded while it streams. Strict: CRLF only, sizes without sign or padding, bounded
// lines. A body is refused as soon as its chunks announce more than it may have. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kcoral::gateway {

class ChunkedDecoder {
 public:
  struct Step {
    enum class Kind { kNeedMore, kData, kEnd };
    Kind kind = Kind::kNeedMore;
    std::string_view data;  // for kData; a piece of the input
  };

  explicit ChunkedDecoder(uint64_t body_bytes_max) : room_bytes_(body_bytes_max), body_bytes_max_(body_bytes_max) {}

  /// Consumes from the front of `input` up to the next piece of data or the end of the body. What follows the end stays
  /// in `input`. kRequestTooLarge for a body over its limit, kParse for a malformed one.
  /// Requires: no call after kEnd or an error.
  Result<Step> next(std::string_view& input);

 private:
  enum class State { kSize, kData, kDataEnd, kTrailers };

  /// Moves a whole line from `input` to `line_`; false while it is incomplete.
  Result<bool> take_line(std::string_view& input);
  Status take_data_end(std::string_view& input);
  Status read_size();

  State state_ = State::kSize;
  uint64_t remaining_ = 0;  // of this chunk
  uint64_t room_bytes_;     // for chunks to come
  uint64_t body_bytes_max_;
  size_t trailer_bytes_ = 0;
  std::string line_;
};

}  // namespace kcoral::gateway
