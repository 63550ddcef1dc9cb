#include "gateway/http_types.h"

#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

uint64_t bytes_of(const schema::Answer::Segment& segment) {
  if (const auto* extent = std::get_if<schema::Extent>(&segment)) return extent->length;
  if (const auto* text = std::get_if<std::string>(&segment)) return text->size();
  return std::get<std::string_view>(segment).size();
}

}  // namespace

uint64_t Response::body_bytes() const {
  uint64_t bytes = 0;
  for (const auto& segment : body) bytes += bytes_of(segment);
  return bytes;
}

Response answer_response(const Uuid& request_id, std::shared_ptr<const schema::Answer> answer) {
  Response response{.request_id = request_id,
                    .http_status = answer->http_status,
                    .content_type = answer->content_type(),
                    .body = answer->body()};
  if (answer->retry_after_seconds > 0) {
    response.headers.push_back({"Retry-After", std::to_string(answer->retry_after_seconds)});
  }
  response.body_owner = std::move(answer);
  return response;
}

Response text_response(const Uuid& request_id, std::string text, std::string content_type) {
  Response response{.request_id = request_id, .content_type = std::move(content_type)};
  response.body.emplace_back(std::move(text));
  return response;
}

Response error_response(const Uuid& request_id, const Error& error) {
  return answer_response(request_id, std::make_shared<const schema::Answer>(
                                         schema::make_error_answer(request_id, error, limits::kRetryAfterSeconds)));
}

}  // namespace kcoral::gateway
