#include "store/audit_events.h"

#include "schema/json_reader.h"

namespace kcoral::store::audit_events {

// Names and reasons may come from headers and from other processes.
using schema::json_text;

std::string admitted(const Submission& submission, uint64_t blob_bytes) {
  return fmt::format(
      R"("event":"admitted","client":{},"peer":{},"program_bytes":{},"blobs":{},"blob_bytes":{},"program_sha256":"{}")",
      json_text(submission.client), json_text(submission.peer), submission.program_text.size(),
      submission.program.blobs.size(), blob_bytes, submission.program_sha256.hex());
}

std::string queued() { return R"("event":"queued")"; }

std::string assigned(const ExecutorRef& executor, int attempt) {
  return fmt::format(R"("event":"assigned","executor":{},"pid":{},"attempt":{})", json_text(executor.name),
                     executor.pid, attempt);
}

std::string running(int pid, int attempt) {
  return fmt::format(R"("event":"running","pid":{},"attempt":{})", pid, attempt);
}

std::string gap(std::string_view reason) {
  return fmt::format(R"("event":"gap","reason":{})",
                     json_text(fmt::format("{}; records of the last 100 ms may be missing", reason)));
}

std::string requeued(std::string_view reason) {
  return fmt::format(R"("event":"requeued","reason":{})", json_text(reason));
}

std::string cancel_requested(CancelBy by) {
  return fmt::format(R"("event":"cancel_requested","by":"{}")", by == CancelBy::kClient ? "client" : "nobody waits");
}

std::string finished(schema::State state, std::string_view reason) {
  return fmt::format(R"("event":"finished","state":"{}","reason":{})", schema::wire_name(state), json_text(reason));
}

}  // namespace kcoral::store::audit_events
