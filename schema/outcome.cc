#include "schema/outcome.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "schema/json_reader.h"
#include "schema/limits.h"
#include "schema/utf8.h"

namespace kcoral::schema {
namespace {

constexpr std::array<std::pair<InstructionErrorKind, std::string_view>, 8> kErrorKinds{{
    {InstructionErrorKind::kParse, "parse"},
    {InstructionErrorKind::kCompile, "compile"},
    {InstructionErrorKind::kRuntime, "runtime"},
    {InstructionErrorKind::kCorrectness, "correctness"},
    {InstructionErrorKind::kGpuAccess, "gpu_access"},
    {InstructionErrorKind::kSerialization, "serialization"},
    {InstructionErrorKind::kUnavailable, "unavailable"},
    {InstructionErrorKind::kEngine, "engine"},
}};

constexpr int kDepthAroundValues = 8;  // of a result document

std::string_view json_boolean(bool value) { return value ? "true" : "false"; }

/// Always spelled with a fraction, so that every client reads the same type; to the microsecond.
std::string json_ms(double ms) {
  KCORAL_CHECK(std::isfinite(ms));
  return fmt::format("{:.3f}", ms > 0 ? ms : 0.0);  // nor -0.0
}

std::string cut_message(const std::string& message) {
  if (message.size() <= limits::kErrorMessageBytesMax) return message;
  const std::string note = fmt::format(" ... (cut; the whole message has {} bytes)", message.size());
  return std::string(utf8_prefix(message, limits::kErrorMessageBytesMax - note.size())) + note;
}

std::string render_gpu_access(const GpuAccess& access) {
  return fmt::format(R"(,"cuda_call":{},"location":{},"interfered_request_id":{})", json_text(access.cuda_call),
                     json_text(access.location),
                     access.interfered_request_id ? json_text(*access.interfered_request_id) : "null");
}

std::string render_error(const InstructionError& error) {
  KCORAL_CHECK((error.kind == InstructionErrorKind::kGpuAccess) == error.gpu_access.has_value());
  return fmt::format(
      R"({{"kind":"{}","message":{},"instruction_index":{},"instruction_op":{},"instruction_id":{},"traceback":{}{}}})",
      wire_name(error.kind), json_quote(cut_message(utf8_with_replacement(error.message))), error.instruction_index,
      json_text(error.instruction_op), error.instruction_id ? json_text(*error.instruction_id) : "null",
      json_quote(utf8_suffix(utf8_with_replacement(error.traceback), limits::kTracebackBytesMax)),
      error.gpu_access ? render_gpu_access(*error.gpu_access) : "");
}

std::string part_head(std::string_view boundary, std::string_view name, std::string_view content_type) {
  return fmt::format("--{}\r\nContent-Disposition: form-data; name=\"{}\"\r\nContent-Type: {}\r\n\r\n", boundary, name,
                     content_type);
}

std::string return_part_head(std::string_view boundary, size_t index) {
  return part_head(boundary, fmt::format("return:{}", index), "application/octet-stream");
}

std::string result_part_head(std::string_view boundary) { return part_head(boundary, "result", "application/json"); }

std::string closing_boundary(std::string_view boundary) { return fmt::format("--{}--\r\n", boundary); }

constexpr std::string_view kLineEnd = "\r\n";

}  // namespace

std::string_view wire_name(InstructionErrorKind kind) {
  for (const auto& [known, name] : kErrorKinds) {
    if (known == kind) return name;
  }
  KCORAL_CHECK(false && "an error kind without a name");
  return {};
}

std::optional<InstructionErrorKind> instruction_error_kind_from(std::string_view wire_name) {
  for (const auto& [kind, name] : kErrorKinds) {
    if (name == wire_name) return kind;
  }
  return std::nullopt;
}

std::string render_outcome_members(const Outcome& outcome) {
  const bool is_failed = outcome.ending == Outcome::Ending::kFailed;
  KCORAL_CHECK(is_failed || outcome.ending == Outcome::Ending::kCompleted);
  KCORAL_CHECK(is_failed == outcome.error.has_value());

  std::string members;
  if (outcome.gpu_count > 1) {
    members = fmt::format("\"gpu_count\":{},\"gpu_ids\":[{}],", outcome.gpu_count, fmt::join(outcome.gpu_ids, ","));
  }
  members += "\"results\":{";
  for (const ReturnedValue& returned : outcome.returns) {
    if (&returned != &outcome.returns.front()) members += ',';
    members += json_text(returned.key);
    members += ':';
    members += returned.wire_text;
  }
  members += "},\"stdout\":";
  members += json_text(outcome.stdout_bytes);
  members += ",\"stderr\":";
  members += json_text(outcome.stderr_bytes);
  members += fmt::format(",\"stdout_truncated\":{},\"stderr_truncated\":{}", json_boolean(outcome.stdout_truncated),
                         json_boolean(outcome.stderr_truncated));
  if (is_failed) {
    members += ",\"error\":";
    members += render_error(*outcome.error);
  }
  return members;
}

std::string render_result_document(bool completed, const Uuid& request_id, const OutcomeTimes& times,
                                   std::string_view outcome_members) {
  std::string document = fmt::format(
      R"({{"status":"{}","request_id":"{}","queue_ms":{},"elapsed_ms":{},"lease_wait_ms":{},"lease_held_ms":{},)",
      completed ? "COMPLETED" : "FAILED", request_id.str(), json_ms(times.queue_ms), json_ms(times.elapsed_ms),
      json_ms(times.lease_wait_ms), json_ms(times.lease_held_ms));
  document.reserve(document.size() + outcome_members.size() + 1);
  document += outcome_members;
  document += '}';
  return document;
}

std::string Answer::content_type() const {
  if (parts.empty()) return "application/json";
  return fmt::format("multipart/form-data; boundary={}", boundary);
}

uint64_t Answer::body_bytes() const {
  if (parts.empty()) return document.size();
  uint64_t bytes = result_part_head(boundary).size() + document.size() + kLineEnd.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    bytes += return_part_head(boundary, i).size() + parts[i].extent.length + kLineEnd.size();
  }
  return bytes + closing_boundary(boundary).size();
}

std::vector<Answer::Segment> Answer::body() const {
  if (parts.empty()) return {std::string_view(document)};
  std::vector<Segment> segments;
  segments.reserve(2 * parts.size() + 3);
  segments.emplace_back(result_part_head(boundary));
  segments.emplace_back(std::string_view(document));
  std::string framing(kLineEnd);
  for (size_t i = 0; i < parts.size(); ++i) {
    framing += return_part_head(boundary, i);
    if (parts[i].extent.length > 0) {  // an empty part is only framing
      segments.emplace_back(std::exchange(framing, {}));
      segments.emplace_back(parts[i].extent);
    }
    framing += kLineEnd;
  }
  framing += closing_boundary(boundary);
  segments.emplace_back(std::move(framing));
  return segments;
}

Answer make_result_answer(std::string document, std::vector<Part> parts) {
  Answer answer;
  answer.document = std::move(document);
  answer.parts = std::move(parts);
  // 122 random bits: no content can be made to contain it, since content was sealed before.
  if (!answer.parts.empty()) answer.boundary = "kcoral-" + Uuid::random().str();
  return answer;
}

Answer make_error_answer(const Uuid& request_id, const Error& error, int retry_after_seconds) {
  const ErrorKindInfo& kind = info(error.kind);
  Answer answer;
  answer.http_status = kind.http_status;
  answer.document = fmt::format(R"({{"status":"ERROR","request_id":"{}","error":{{"kind":"{}","message":{}}}}})",
                                request_id.str(), kind.wire_name, json_text(error.message));
  if (kind.retry_later) answer.retry_after_seconds = std::max(retry_after_seconds, 1);
  return answer;
}

Answer make_cache_miss_answer(const Uuid& request_id, const std::vector<Digest>& missing) {
  Answer answer;
  answer.document = fmt::format(R"({{"status":"CACHE_MISS","request_id":"{}","missing_blobs":[)", request_id.str());
  for (const Digest& blob : missing) {
    if (&blob != &missing.front()) answer.document += ',';
    answer.document += fmt::format("\"{}\"", blob.hex());
  }
  answer.document += "]}";
  return answer;
}

Result<std::string> output_in(std::string_view document, std::string_view member) {
  JsonReader reader(document, limits::kValueDepthMax + kDepthAroundValues);
  std::string output;
  auto read = reader.read_object([&](const std::string& key) -> Status {
    if (key != member) {
      auto skipped = reader.read_verbatim();
      return skipped ? Status() : Status(fail(skipped.error()));
    }
    auto text = reader.read_string();
    if (!text) return fail(text.error());
    output = std::move(*text);
    return {};
  });
  if (!read) return fail(ErrorKind::kEngine, "a stored answer cannot be read: {}", read.error().message);
  return output;
}

}  // namespace kcoral::schema
