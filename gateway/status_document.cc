#include "gateway/status_document.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "gateway/query.h"
#include "schema/json_reader.h"

namespace kcoral::gateway {
namespace {

using nlohmann::ordered_json;
using schema::json_text;

std::string or_null(const std::optional<WallTime>& time) {
  return time ? fmt::format(R"("{}")", rfc3339(*time)) : "null";
}

/// To the microsecond, as an answer has it.
std::string rounded(double ms) { return ordered_json(std::round(ms * 1000) / 1000).dump(); }

std::string times_of(const store::RequestStatus& status) {
  if (!status.times) return "";
  const schema::OutcomeTimes& times = *status.times;
  return fmt::format(R"("queue_ms":{},"elapsed_ms":{},"lease_wait_ms":{},"lease_held_ms":{},)", rounded(times.queue_ms),
                     rounded(times.elapsed_ms), rounded(times.lease_wait_ms), rounded(times.lease_held_ms));
}

std::string error_of(const store::RequestStatus& status) {
  if (status.error_kind.empty()) return "null";
  return fmt::format(R"({{"kind":{},"message":{}}})", json_text(status.error_kind), json_text(status.error_message));
}

std::string labels_of(const store::RequestStatus& status) {
  std::string labels;
  for (const auto& [name, value] : status.labels) {
    labels += fmt::format("{}{}:{}", labels.empty() ? "" : ",", json_text(name), json_text(value));
  }
  return labels;
}

/// `results` are the store's summary: what has no key there was not written by a server of ours, and has no link.
std::string artifacts_of(const std::string& self, const ordered_json& results) {
  std::string links;
  for (const ordered_json& result : results) {
    const auto key = result.find("key");
    if (key == result.end() || !key->is_string()) continue;
    const std::string& name = key->get_ref<const std::string&>();
    links +=
        fmt::format(R"({}{}:"{}/artifacts/{}")", links.empty() ? "" : ",", json_text(name), self, percent_encode(name));
  }
  return links;
}

ordered_json results_of(const store::RequestStatus& status) {
  auto results = ordered_json::parse(status.results_summary, nullptr, /*allow_exceptions=*/false);
  return results.is_array() ? results : ordered_json::array();
}

}  // namespace

std::string path_of_request(const Uuid& request_id) { return "/requests/" + request_id.str(); }

// Written as text, in which each submission and poll is answered, and not through a tree. Programs chose some of these
// texts: nothing in them may throw on an I/O thread.
std::string status_document(const store::RequestStatus& status) {
  const std::string self = path_of_request(status.request_id);
  const ordered_json results = results_of(status);
  return fmt::format(
      R"({{"request_id":"{}","state":"{}","client":{},"labels":{{{}}},"priority":{},"submitted_at":"{}",)"
      R"("started_at":{},"finished_at":{},"attempt":{},"queue_position":{},"gpu_ids":[{}],"executor":{},{})"
      R"("error":{},"program_sha256":"{}","results":{},"links":{{"self":"{}","result":"{}/result",)"
      R"("program":"{}/program","audit":"{}/audit","output":"{}/output","artifacts":{{{}}}}}}})",
      status.request_id.str(), schema::wire_name(status.state), json_text(status.client), labels_of(status),
      status.priority, rfc3339(status.submitted_at), or_null(status.started_at), or_null(status.finished_at),
      status.attempt, status.queue_position ? std::to_string(*status.queue_position) : "null",
      fmt::join(status.gpu_ids, ","), status.executor.empty() ? "null" : json_text(status.executor), times_of(status),
      error_of(status), status.program_sha256.hex(),
      results.dump(-1, ' ', false, ordered_json::error_handler_t::replace), self, self, self, self, self,
      artifacts_of(self, results));
}

Response status_response(const Uuid& call_id, const store::RequestStatus& status, int http_status) {
  Response response = text_response(call_id, status_document(status));
  response.http_status = http_status;
  return response;
}

}  // namespace kcoral::gateway
