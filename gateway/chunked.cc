#include "gateway/chunked.h"

#include <algorithm>
#include <charconv>

#include "gateway/http_types.h"
#include "schema/limits.h"

namespace kcoral::gateway {
Result<bool> ChunkedDecoder::take_line(std::string_view& input) {
  const size_t newline = input.find('\n');
  const size_t taken = std::min(newline, input.size() - 1) + 1;
  line_.append(input.substr(0, taken));
  input.remove_prefix(taken);
  if (line_.size() > limits::kChunkLineBytesMax) {
    return fail(ErrorKind::kParse, "a line of the chunked body is too long");
  }
  if (newline == std::string_view::npos) return false;
  if (!line_.ends_with("\r\n")) return fail(ErrorKind::kParse, "a line of the chunked body does not end in CRLF");
  line_.resize(line_.size() - 2);
  if (line_.find_first_of(std::string_view("\r\0", 2)) != std::string::npos) {
    return fail(ErrorKind::kParse, "a line of the chunked body holds a control character");
  }
  return true;
}

Status ChunkedDecoder::read_size() {
  const char* const begin = line_.data();
  const char* const end = begin + line_.size();
  const auto [after, code] = std::from_chars(begin, end, remaining_, 16);
  const bool extension = after != end && (*after == ';' || *after == ' ' || *after == '\t');
  const bool padded = after - begin > 15 && *begin == '0';
  if (code == std::errc::invalid_argument || padded || (after != end && !extension)) {
    return fail(ErrorKind::kParse, "a chunk's size is malformed");
  }
  if (code == std::errc::result_out_of_range || remaining_ > room_bytes_) {
    return fail(request_too_large(body_bytes_max_));
  }
  room_bytes_ -= remaining_;
  return {};
}

/// Byte by byte, so that a chunk longer than its size is refused at once and not when a line ends.
Status ChunkedDecoder::take_data_end(std::string_view& input) {
  static constexpr std::string_view kLineEnd = "\r\n";
  while (!input.empty() && line_.size() < kLineEnd.size()) {
    if (input.front() != kLineEnd[line_.size()]) return fail(ErrorKind::kParse, "a chunk is longer than its size");
    line_ += input.front();
    input.remove_prefix(1);
  }
  if (line_ != kLineEnd) return {};
  line_.clear();
  state_ = State::kSize;
  return {};
}

Result<ChunkedDecoder::Step> ChunkedDecoder::next(std::string_view& input) {
  while (!input.empty()) {
    if (state_ == State::kData) {
      const std::string_view data = input.substr(0, remaining_);
      input.remove_prefix(data.size());
      remaining_ -= data.size();
      if (remaining_ == 0) state_ = State::kDataEnd;
      return Step{Step::Kind::kData, data};
    }
    if (state_ == State::kDataEnd) {
      if (auto taken = take_data_end(input); !taken) return fail(taken.error());
      continue;
    }
    auto complete = take_line(input);
    if (!complete) return fail(complete.error());
    if (!*complete) break;
    if (state_ == State::kSize) {
      if (auto read = read_size(); !read) return fail(read.error());
      state_ = remaining_ == 0 ? State::kTrailers : State::kData;
    } else {
      if (line_.empty()) return Step{Step::Kind::kEnd, {}};
      trailer_bytes_ += line_.size();  // trailers are ignored, but not without bound
      if (trailer_bytes_ > limits::kHeadBytesMax) return fail(ErrorKind::kParse, "the body's trailers are too long");
    }
    line_.clear();
  }
  return Step{};
}

}  // namespace kcoral::gateway
