#include "gateway/gpus.h"

#include <nlohmann/json.hpp>

namespace kcoral::gateway {
namespace {

using nlohmann::ordered_json;

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json to_json(const std::optional<GpuFacts::Holder>& holder) {
  if (!holder) return nullptr;
  return {
      {"request_id", or_null(holder->request_id)}, {"executor", holder->executor}, {"since", rfc3339(holder->since)}};
}

ordered_json to_json(const GpuFacts& gpu) {
  ordered_json document = {
      {"id", gpu.id},
      {"name", gpu.name},
      {"uuid", gpu.uuid},
      {"arch", gpu.arch},
      {"memory_bytes", gpu.memory_bytes},
      {"memory_used_bytes", or_null(gpu.memory_used_bytes)},
      {"utilisation_percent", or_null(gpu.utilisation_percent)},
      {"temperature_celsius", or_null(gpu.temperature_celsius)},
      {"sm_clock_mhz", or_null(gpu.sm_clock_mhz)},
      {"health", gpu.quarantine ? "quarantined" : "ok"},
      {"holder", to_json(gpu.holder)},
      {"waiters", gpu.waiters},
      {"handovers", gpu.handovers},
      {"idle_between_ms", gpu.idle_between_ms},
  };
  if (gpu.quarantine) {
    document["quarantined"] = {{"since", rfc3339(gpu.quarantine->since)}, {"reason", gpu.quarantine->reason}};
  }
  return document;
}

}  // namespace

schema::Answer make_gpus_answer(const std::vector<GpuFacts>& gpus) {
  ordered_json list = ordered_json::array();
  for (const GpuFacts& gpu : gpus) list.push_back(to_json(gpu));
  return schema::make_result_answer(ordered_json{{"gpus", std::move(list)}}.dump(), {});
}

}  // namespace kcoral::gateway
