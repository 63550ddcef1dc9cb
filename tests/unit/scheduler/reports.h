// Reports as an executor would send them.
#pragma once

#include "base/memfd.h"
#include "executor/executor.h"
#include "schema/outcome.h"

namespace kcoral::scheduler {

inline executor::RunReport completed_report(size_t stdout_bytes = 0) {
  schema::Outcome outcome;
  outcome.ending = schema::Outcome::Ending::kCompleted;
  outcome.returns = {{"value", R"({"type":"integer","value":42})"}};
  outcome.stdout_bytes = std::string(stdout_bytes, 'x');
  executor::RunReport report;
  report.ending = outcome.ending;
  report.results_summary = "[]";
  report.outcome_members = *SealedMemory::copy_of(schema::render_outcome_members(outcome));
  report.elapsed_ms = 12.5;
  return report;
}

inline executor::RunReport ended_report(schema::Outcome::Ending ending, std::string message) {
  executor::RunReport report;
  report.ending = ending;
  report.error_message = std::move(message);
  report.results_summary = "[]";
  return report;
}

}  // namespace kcoral::scheduler
