// Failpoints: named moments on the way of a request at which a test has this process killed.
//
// It promises: while KCORAL_FAILPOINT is not set, passing a point costs one relaxed load; a name that the table does
// not have is an error, of the compiler here and at the start there. `NAME:N` kills the process with SIGKILL when it
// passes NAME for the N-th time, and `note` never; both write the name of each point that is passed for the first time
// to standard error. The server and its executors read the same setting, and none passes the other's points.
//
// Thread-safe, but for `arm_failpoints`.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "base/error.h"

namespace kcoral {

/// Part, step and moment. `begun`: in the transaction, before the change; `applied`: before its commit; `committed`:
/// before anybody hears of it.
inline constexpr std::string_view kFailpoints[] = {
    "gateway.body.received",      "gateway.admission.answering", "gateway.outcome.answering",
    "gateway.cancel.answering",   "gateway.answer.half_sent",    "gateway.answer.sent",
    "store.blobs.staged",         "store.blobs.stored",          "store.blobs.synced",
    "store.admit.begun",          "store.admit.applied",         "store.admit.committed",
    "store.claim.begun",          "store.claim.applied",         "store.claim.committed",
    "store.claim.loaded",         "store.claim.handed_over",     "store.notes.begun",
    "store.notes.applied",        "store.notes.committed",       "store.answer.stored",
    "store.answer.synced",        "store.finish.begun",          "store.finish.applied",
    "store.finish.committed",     "store.requeue.begun",         "store.requeue.applied",
    "store.requeue.committed",    "store.cancel.begun",          "store.cancel.applied",
    "store.cancel.committed",     "store.batch.applied",         "store.batch.committed",
    "content.mark.synced",        "content.chunk.written",       "content.table.ingested",
    "content.name.written",       "audit.copy.stored",           "audit.copy.synced",
    "audit.removal.applied",      "audit.removal.committed",     "retention.rows.applied",
    "retention.rows.committed",   "retention.content.dropped",   "retention.content.synced",
    "backup.snapshot.taken",      "backup.content.held",         "backup.database.copied",
    "backup.content.copied",      "backup.directory.placed",     "recovery.start.opened",
    "recovery.content.swept",     "recovery.answers.swept",      "recovery.runs.abandoned",
    "recovery.audit.copied",      "scheduler.run.starting",      "scheduler.run.sent",
    "scheduler.outcome.received", "scheduler.loss.noticed",      "executor.run.received",
    "executor.run.started",       "executor.outcome.made",       "executor.outcome.half_sent",
    "executor.outcome.sent",
};

class Failpoint {
 public:
  // Implicit, so that a point is passed by its name alone.
  consteval Failpoint(std::string_view name)
      : index_(static_cast<size_t>(std::ranges::find(kFailpoints, name) - kFailpoints)) {
    if (index_ == std::size(kFailpoints)) throw std::invalid_argument("the table of failpoints has no such name");
  }
  consteval Failpoint(const char* name) : Failpoint(std::string_view(name)) {}

  size_t index() const { return index_; }

 private:
  size_t index_;
};

/// As KCORAL_FAILPOINT says; nullptr arms nothing. The error for an unknown name lists those that there are.
/// Requires: called once, before there are threads.
Status arm_failpoints(const char* setting);

namespace failpoints_internal {
extern std::atomic<bool> armed;
void pass(size_t index);
}  // namespace failpoints_internal

inline void failpoint(Failpoint at) {
  if (failpoints_internal::armed.load(std::memory_order_relaxed)) [[unlikely]]
    failpoints_internal::pass(at.index());
}

}  // namespace kcoral
