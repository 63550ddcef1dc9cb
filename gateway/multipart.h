// multipart/form-data, parsed while it streams: memory is bounded by one part's head, whatever a part holds.
//
// Quoted boundaries, header names in any case, a preamble and an epilogue are accepted; of a part's head only the name
// of its Content-Disposition and its Content-Type count, the rest (filename, other headers) is ignored. Not
// thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kcoral::gateway {

/// Receives the parts in order. An error ends the parse and is handed to whoever feeds.
class MultipartSink {
 public:
  virtual ~MultipartSink() = default;
  /// `content_type` is the media type in lowercase, without parameters; empty if none was sent.
  virtual Status on_part_begin(const std::string& name, const std::string& content_type) = 0;
  virtual Status on_part_data(std::string_view bytes) = 0;
  virtual Status on_part_end() = 0;
};

class MultipartParser {
 public:
  /// `content_type` is the request's header. kParse if it is no multipart/form-data with a usable boundary.
  /// The sink must outlive the parser.
  static Result<MultipartParser> create(std::string_view content_type, MultipartSink& sink);

  /// Requires: no call after an error.
  Status feed(std::string_view bytes);
  /// The body is over: an error unless its closing boundary was seen.
  Status finish() const;

 private:
  enum class State { kPreamble, kBoundaryLine, kPartHead, kPartData, kEpilogue };

  MultipartParser(const std::string& boundary, MultipartSink& sink) : sink_(&sink), delimiter_("\r\n--" + boundary) {}

  Status take_until_delimiter(std::string_view& bytes);
  Status take_boundary_line(std::string_view& bytes);
  Status take_part_head(std::string_view& bytes);
  Status emit(std::string_view data);
  Status begin_part();

  MultipartSink* sink_;
  std::string delimiter_;
  State state_ = State::kPreamble;
  // How much of the delimiter the bytes so far end with. The body's first boundary needs no line break before it.
  size_t matched_ = 2;
  std::string held_;  // an incomplete boundary line or part head
};

}  // namespace kcoral::gateway
