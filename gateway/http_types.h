// Requests and answers as the gateway's own code sees them: nothing above the transport knows a Pistache type.
//
// Plain values; no thread-safety of their own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/uuid.h"
#include "schema/outcome.h"

namespace kcoral::gateway {

struct Header {
  std::string name;   // lowercase in a request, as it is to be sent in an answer
  std::string value;  // without surrounding white space
};

enum class HttpVersion { k10, k11 };

/// How the end of a request's body is known.
struct BodyFraming {
  bool chunked = false;
  uint64_t content_length = 0;  // 0 when chunked or when there is no body; the largest value for anything above it

  bool has_body() const { return chunked || content_length > 0; }
};

/// For a request whose client chose none.
Uuid fresh_request_id();

/// A request's line and headers, checked by `parse_head`.
struct RequestHead {
  std::string method;  // as sent; may be one that nobody knows
  std::string path;    // as sent, not percent-decoded; without the query
  std::string query;   // as sent, what follows the first '?' of the target
  HttpVersion version = HttpVersion::k11;
  std::vector<Header> headers;
  BodyFraming body;
  bool keep_alive = true;
  bool expects_continue = false;

  /// The header's value if it was sent exactly once.
  std::optional<std::string_view> sole(std::string_view lowercase_name) const;
  size_t count(std::string_view lowercase_name) const;

  /// The id that the client chose, or a fresh one: anything but one canonical lowercase UUID is ignored.
  Uuid request_id() const;
};

/// What goes back to a client. The connection adds framing and leaves the body out for HEAD.
struct Response {
  Uuid request_id;  // echoed in X-Request-ID
  int http_status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers = {};  // besides those of the fields above and of the framing
  std::vector<schema::Answer::Segment> body = {};
  std::shared_ptr<const void> body_owner = {};  // of what the body's views point to
  bool close = false;  // close the connection after it, even if the request's body was read to its end

  uint64_t body_bytes() const;
};

/// `answer` as it stands, byte for byte.
Response answer_response(const Uuid& request_id, std::shared_ptr<const schema::Answer> answer);
/// A body that is one text.
Response text_response(const Uuid& request_id, std::string text, std::string content_type = "application/json");
/// Contract section 7. What may be asked again later says when.
Response error_response(const Uuid& request_id, const Error& error);

/// The error of a body beyond `body_bytes_max`.
inline Error request_too_large(uint64_t body_bytes_max) {
  return {ErrorKind::kRequestTooLarge,
          fmt::format("the request's body is larger than this server accepts ({} bytes)", body_bytes_max)};
}

/// Where the answer to one request goes.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  /// Requires: called on the connection's I/O thread, once for each request.
  virtual void respond(Response response) = 0;
};

/// One request from its head to its answer. Lives on its connection's I/O thread, which destroys it once it has
/// answered or its client is gone: an answer that would come later finds nobody, and can therefore reach nobody else.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// A piece of the body, without the framing of the transfer. Not called any more after an answer.
  virtual void on_body(std::string_view bytes) = 0;
  /// The body is complete; called for a request without a body too.
  virtual void on_body_end() = 0;
};

}  // namespace kcoral::gateway
