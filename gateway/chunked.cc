#include "gateway/chunked.h"

#include <algorithm>
#include <charconv>

#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

constexpr size_t kLineBytesMax = 1024;  // a size with its extensions, which are ignored

}  // namespace

Result<bool> ChunkedDecoder::take_line(std::string_view& input) {
  const size_t newline = input.find('\n');
  const size_t taken = std::min(newline, input.size() - 1) + 1;
  line_.append(input.substr(0, taken));
  input.remove_prefix(taken);
  if (line_.size() > kLineBytesMax) return fail(ErrorKind::kParse, "a line of the chunked body is too long");
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
  if (code != std::errc() || after - begin > 15 || (after != end && !extension)) {
    return fail(ErrorKind::kParse, "a chunk's size is malformed");
  }
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
    auto complete = take_line(input);
    if (!complete) return fail(complete.error());
    if (!*complete) break;
    if (state_ == State::kSize) {
      if (auto read = read_size(); !read) return fail(read.error());
      state_ = remaining_ == 0 ? State::kTrailers : State::kData;
    } else if (state_ == State::kDataEnd) {
      if (!line_.empty()) return fail(ErrorKind::kParse, "a chunk is longer than its size");
      state_ = State::kSize;
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
