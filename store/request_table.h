// The rows of requests and every change that may happen to one, each with its audit records in the same transaction.
//
// It promises: a change that the state machine forbids, or that comes from an attempt other than the row's own, is
// kConflict and changes nothing. Belongs to the writer's thread; each function runs inside a transaction and is undone
// with it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "store/answers.h"
#include "store/outbox.h"
#include "store/program_text.h"
#include "store/sqlite.h"
#include "store/store.h"

namespace kcoral::store {

/// What an id that is known already means for a submission: kAttached, or kConflict with a message that reveals nothing
/// of whose it is.
Result<Admission::Kind> admission_of_known_id(const Submission& submission, std::string_view owner,
                                              const Digest& program_sha256);

class RequestTable {
 public:
  static Result<std::unique_ptr<RequestTable>> create(Database& database, Outbox& outbox);

  /// kAdmitted or kAttached; kConflict if the id is taken by another program or owner.
  Result<Admission::Kind> admit(const Submission& submission, const EncodedText& program, uint64_t blob_bytes,
                                WallTime now);

  struct Claimed {
    int64_t seq = 0;
    uint64_t program_bytes = 0;
    Claim claim;  // without program and blobs
  };
  /// queued → assigned, for the highest priority and then the first submission of those that are (not) for several
  /// GPUs; nullopt if none is queued.
  Result<std::optional<Claimed>> claim_next(const ExecutorRef& executor, bool for_several_gpus, WallTime now);
  /// assigned → queued, at its old place: its attempt is not used up. Requires: the claim was given to nobody.
  Status unclaim(const Fence& fence, const std::string& reason, WallTime now);

  Status mark_running(const Fence& fence, int pid, WallTime now);
  Status append_audit(const Fence& fence, const std::vector<AuditRecord>& records);
  Status finish(const Fence& fence, const Completion& completion, const KeptAnswer& answer, WallTime now);
  /// queued → rejected.
  Status reject(const Uuid& request_id, const Completion& completion, const KeptAnswer& answer, WallTime now);

  /// What became of a request whose run was lost.
  struct Lost {
    bool is_queued = false;            // otherwise no attempt is left, and nothing changed
    std::vector<AuditRecord> records;  // in that case: what its audit must say before "finished"
  };
  /// assigned or running → queued, if attempts are left. A request that came as far as `gap_from` may lack records of
  /// its instructions, and its audit says so.
  Result<Lost> requeue(const Fence& fence, const std::string& reason, schema::State gap_from, WallTime now);

 private:
  struct Row {
    int64_t seq = 0;
    schema::State state = schema::State::kQueued;
    int attempt = 0;
    int max_attempts = 1;
    AuditPosition audit;
  };

  explicit RequestTable(Outbox& outbox) : outbox_(outbox) {}
  Result<Row> load(const Uuid& request_id);
  /// The row of a fence that holds. `to`: where it is to move.
  Result<Row> load_fenced(const Fence& fence, std::optional<schema::State> to);
  Status finish_row(const Uuid& request_id, Row& row, const Completion& completion, const KeptAnswer& answer,
                    WallTime now);
  Result<std::optional<Admission::Kind>> existing(const Submission& submission);
  Status insert(const Submission& submission, const EncodedText& program, WallTime now, const AuditPosition& audit);

  Outbox& outbox_;
  Database* database_ = nullptr;
  Statement find_;
  Statement find_existing_;
  Statement insert_;
  Statement insert_program_;
  Statement insert_blob_;
  Statement find_claimable_;
  Statement assign_;
  Statement unassign_;
  Statement run_;
  Statement audit_;
  Statement finish_;
  Statement insert_answer_;
  Statement requeue_;
};

}  // namespace kcoral::store
