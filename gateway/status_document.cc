#include "gateway/status_document.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "gateway/query.h"

namespace kcoral::gateway {
namespace {

using nlohmann::ordered_json;

ordered_json or_null(const std::optional<WallTime>& time) {
  return time ? ordered_json(rfc3339(*time)) : ordered_json(nullptr);
}

/// To the microsecond, as an answer has it.
double rounded(double ms) { return std::round(ms * 1000) / 1000; }

void add_times(ordered_json& document, const schema::OutcomeTimes& times) {
  document["queue_ms"] = rounded(times.queue_ms);
  document["elapsed_ms"] = rounded(times.elapsed_ms);
  document["lease_wait_ms"] = rounded(times.lease_wait_ms);
  document["lease_held_ms"] = rounded(times.lease_held_ms);
}

ordered_json error_of(const store::RequestStatus& status) {
  if (status.error_kind.empty()) return nullptr;
  return {{"kind", status.error_kind}, {"message", status.error_message}};
}

/// `results` are the store's summary: what has no key there was not written by a server of ours, and has no link.
ordered_json links_of(const Uuid& request_id, const ordered_json& results) {
  const std::string self = path_of_request(request_id);
  ordered_json artifacts = ordered_json::object();
  for (const ordered_json& result : results) {
    const auto key = result.find("key");
    if (key == result.end() || !key->is_string()) continue;
    const std::string& name = key->get_ref<const std::string&>();
    artifacts[name] = self + "/artifacts/" + percent_encode(name);
  }
  return {{"self", self},
          {"result", self + "/result"},
          {"program", self + "/program"},
          {"audit", self + "/audit"},
          {"output", self + "/output"},
          {"artifacts", std::move(artifacts)}};
}

ordered_json results_of(const store::RequestStatus& status) {
  auto results = ordered_json::parse(status.results_summary, nullptr, /*allow_exceptions=*/false);
  return results.is_array() ? results : ordered_json::array();
}

}  // namespace

std::string path_of_request(const Uuid& request_id) { return "/requests/" + request_id.str(); }

std::string status_document(const store::RequestStatus& status) {
  ordered_json results = results_of(status);
  ordered_json document = {
      {"request_id", status.request_id.str()},
      {"state", schema::wire_name(status.state)},
      {"client", status.client},
      {"labels", status.labels},
      {"priority", status.priority},
      {"submitted_at", rfc3339(status.submitted_at)},
      {"started_at", or_null(status.started_at)},
      {"finished_at", or_null(status.finished_at)},
      {"attempt", status.attempt},
      {"queue_position", status.queue_position ? ordered_json(*status.queue_position) : ordered_json(nullptr)},
      {"gpu_ids", status.gpu_ids},
      {"executor", status.executor.empty() ? ordered_json(nullptr) : ordered_json(status.executor)},
  };
  if (status.times) add_times(document, *status.times);
  document["error"] = error_of(status);
  document["program_sha256"] = status.program_sha256.hex();
  ordered_json links = links_of(status.request_id, results);
  document["results"] = std::move(results);
  document["links"] = std::move(links);
  // Programs chose some of these texts: nothing in them may throw on an I/O thread.
  return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

Response status_response(const Uuid& call_id, const store::RequestStatus& status, int http_status) {
  Response response = text_response(call_id, status_document(status));
  response.http_status = http_status;
  return response;
}

}  // namespace kcoral::gateway
