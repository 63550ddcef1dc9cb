#include "gateway/health.h"

#include <nlohmann/json.hpp>

namespace kcoral::gateway {

schema::Answer make_health_answer(const HealthFacts& facts) {
  nlohmann::ordered_json target = nlohmann::ordered_json::object();
  if (facts.arch) target["arch"] = *facts.arch;
  nlohmann::ordered_json quarantined = nlohmann::ordered_json::array();
  for (const QuarantinedExecutor& each : facts.quarantined) {
    quarantined.push_back({{"executor", each.name}, {"since", rfc3339(each.since)}, {"reason", each.reason}});
  }
  nlohmann::ordered_json document = {
      {"status", facts.status},
      {"instance_id", facts.instance_id},
      {"started_at", rfc3339(facts.started_at)},
      {"gpu_count", facts.gpu_count},
      {"load",
       {{"request_capacity", facts.request_capacity},
        {"requests_in_progress", facts.requests_in_progress},
        {"requests_waiting", facts.requests_waiting}}},
      {"target", target},
      {"versions", facts.versions},
  };
  if (!quarantined.empty()) document["quarantined"] = quarantined;
  return schema::make_result_answer(document.dump(), {});
}

}  // namespace kcoral::gateway
