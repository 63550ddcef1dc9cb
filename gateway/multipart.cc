#include "gateway/multipart.h"

#include <algorithm>
#include <utility>

#include "gateway/ascii.h"
#include "gateway/header_value.h"
#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

bool is_boundary_char(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c)) return true;
  return std::string_view("'()+_,-./:=? ").find(c) != std::string_view::npos;
}

bool is_usable_boundary(std::string_view boundary) {
  return !boundary.empty() && boundary.size() <= limits::kBoundaryBytesMax && boundary.back() != ' ' &&
         std::all_of(boundary.begin(), boundary.end(), is_boundary_char);
}

struct PartHead {
  std::optional<HeaderValue> disposition;
  std::optional<std::string> content_type;
};

Status read_part_header(std::string_view line, PartHead& head) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    return fail(ErrorKind::kParse, "a header line of a part is malformed");
  }
  const std::string name = ascii_lowercase(line.substr(0, colon));
  const std::string_view value = trim_blanks(line.substr(colon + 1));
  if ((name == "content-disposition" && head.disposition) || (name == "content-type" && head.content_type)) {
    return fail(ErrorKind::kParse, "a part has two {} headers", name);
  }
  if (name == "content-type") head.content_type = media_type_of(value);
  if (name != "content-disposition") return {};
  head.disposition = parse_disposition(value);
  if (!head.disposition) return fail(ErrorKind::kParse, "a part's Content-Disposition is malformed");
  return {};
}

/// Requires: `text` consists of lines, each with its CRLF.
Result<PartHead> parse_part_head(std::string_view text) {
  PartHead head;
  while (!text.empty()) {
    const size_t end = text.find("\r\n");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    if (line.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos) {
      return fail(ErrorKind::kParse, "a part's head holds a control character");
    }
    if (auto read = read_part_header(line, head); !read) return fail(read.error());
  }
  return head;
}

}  // namespace

Result<MultipartParser> MultipartParser::create(std::string_view content_type, MultipartSink& sink) {
  const auto parsed = parse_header_value(content_type);
  if (!parsed || parsed->value != "multipart/form-data") {
    return fail(ErrorKind::kParse, "the request's Content-Type must be multipart/form-data");
  }
  const std::string* boundary = parsed->parameter("boundary");
  if (boundary == nullptr || !is_usable_boundary(*boundary)) {
    return fail(ErrorKind::kParse, "the request's Content-Type needs a boundary of 1 to {} allowed characters",
                limits::kBoundaryBytesMax);
  }
  return MultipartParser(*boundary, sink);
}

Status MultipartParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    Status taken;
    switch (state_) {
      case State::kPreamble:
      case State::kPartData:
        taken = take_until_delimiter(bytes);
        break;
      case State::kBoundaryLine:
        taken = take_boundary_line(bytes);
        break;
      case State::kPartHead:
        taken = take_part_head(bytes);
        break;
      case State::kEpilogue:
        return {};
    }
    if (!taken) return taken;
  }
  return {};
}

Status MultipartParser::finish() const {
  if (state_ == State::kEpilogue) return {};
  return fail(ErrorKind::kParse, "the multipart body ends before its closing boundary");
}

Status MultipartParser::emit(std::string_view data) {
  if (state_ == State::kPreamble || data.empty()) return {};
  return sink_->on_part_data(data);
}

// A boundary holds no CR, so the delimiter's only one is its first byte: a match can only begin at a CR, and a match
// that fails can only begin anew at the byte that broke it. What was held back is therefore a prefix of the delimiter
// itself.
Status MultipartParser::take_until_delimiter(std::string_view& bytes) {
  if (matched_ > 0) {
    while (!bytes.empty() && matched_ < delimiter_.size() && bytes.front() == delimiter_[matched_]) {
      ++matched_;
      bytes.remove_prefix(1);
    }
    if (matched_ < delimiter_.size()) {
      if (bytes.empty()) return {};
      return emit(std::string_view(delimiter_).substr(0, std::exchange(matched_, 0)));
    }
  } else {
    const size_t found = bytes.find(delimiter_);
    if (found == std::string_view::npos) {
      const size_t last_cr = bytes.rfind('\r');
      const bool may_continue = last_cr != std::string_view::npos && delimiter_.starts_with(bytes.substr(last_cr));
      matched_ = may_continue ? bytes.size() - last_cr : 0;
      const std::string_view data = bytes.substr(0, bytes.size() - matched_);
      bytes = {};
      return emit(data);
    }
    const std::string_view data = bytes.substr(0, found);
    bytes.remove_prefix(found + delimiter_.size());
    if (auto emitted = emit(data); !emitted) return emitted;
  }
  matched_ = 0;
  const bool in_part = std::exchange(state_, State::kBoundaryLine) == State::kPartData;
  return in_part ? sink_->on_part_end() : Status();
}

Status MultipartParser::take_boundary_line(std::string_view& bytes) {
  held_ += bytes.front();
  bytes.remove_prefix(1);
  if (held_ == "--") {
    held_.clear();
    state_ = State::kEpilogue;
    return {};
  }
  if (held_.ends_with("\r\n")) {
    if (!trim_blanks(std::string_view(held_).substr(0, held_.size() - 2)).empty()) {
      return fail(ErrorKind::kParse, "a multipart boundary is followed by other text");
    }
    // The line break before the head's empty line belongs to the boundary when the head is empty.
    held_ = "\r\n";
    state_ = State::kPartHead;
    return {};
  }
  if (held_.size() > limits::kBoundaryLineBytesMax ||
      (held_ != "-" && held_.back() != '\r' && !is_blank(held_.back()))) {
    return fail(ErrorKind::kParse, "a multipart boundary is followed by other text");
  }
  return {};
}

Status MultipartParser::take_part_head(std::string_view& bytes) {
  const size_t searched_from = held_.size() < 3 ? 0 : held_.size() - 3;
  const size_t room = limits::kPartHeadBytesMax + 4 - std::min(held_.size(), limits::kPartHeadBytesMax + 4);
  const std::string_view taken = bytes.substr(0, room);
  held_ += taken;
  const size_t end = held_.find("\r\n\r\n", searched_from);
  if (end == std::string::npos) {
    if (taken.size() == room) {
      return fail(ErrorKind::kParse, "a part's head is longer than {} bytes", limits::kPartHeadBytesMax);
    }
    bytes = {};
    return {};
  }
  const size_t surplus = held_.size() - (end + 4);
  bytes.remove_prefix(taken.size() - surplus);
  held_.resize(end + 2);  // the last header line keeps its CRLF
  return begin_part();
}

Status MultipartParser::begin_part() {
  auto head = parse_part_head(std::string_view(held_).substr(2));
  held_.clear();
  state_ = State::kPartData;
  if (!head) return fail(head.error());
  if (!head->disposition || head->disposition->value != "form-data") {
    return fail(ErrorKind::kParse, "a part has no Content-Disposition: form-data");
  }
  const std::string* name = head->disposition->parameter("name");
  if (name == nullptr) return fail(ErrorKind::kParse, "a part has no name");
  return sink_->on_part_begin(*name, head->content_type.value_or(""));
}

}  // namespace kcoral::gateway
