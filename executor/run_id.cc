#include "executor/run_id.h"

#include <limits>

#include "executor/frame_fields.h"

namespace kcoral::executor {

nlohmann::json frame_about(const RunId& run, const char* type) {
  return {{"type", type}, {"request_id", run.request_id.str()}, {"attempt", static_cast<uint64_t>(run.attempt)}};
}

Result<RunId> run_id_from(const nlohmann::json& body) {
  auto request_id = uuid_field(body, "request_id");
  if (!request_id) return fail(request_id.error());
  auto attempt = unsigned_field(body, "attempt", std::numeric_limits<int>::max());
  if (!attempt) return fail(attempt.error());
  return RunId{*request_id, static_cast<int>(*attempt)};
}

}  // namespace kcoral::executor
