// The rows of requests and every change that may happen to one, each with its audit records in the same transaction.
//
// It promises: a change that the state machine forbids, or that comes from an attempt other than the row's own, is
// kConflict and changes nothing; the FairQueue has exactly the rows that are queued; the times of a row are those of
// its audit records, which never run backwards; how long something took is the steady clock's word, whatever steps the
// wall clock makes. Belongs to the writer's thread; each function runs inside a transaction and is undone with it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "schema/limits.h"
#include "store/answers.h"
#include "store/fair_queue.h"
#include "store/live_outputs.h"
#include "store/outbox.h"
#include "store/pending_notes.h"
#include "store/program_text.h"
#include "store/sqlite.h"
#include "store/store.h"
#include "store/undo_log.h"

namespace kcoral::store {

/// What an id that is known already means for a submission: kAttached, or kConflict with a message that reveals nothing
/// of whose it is.
Result<Admission::Kind> admission_of_known_id(const Submission& submission, std::string_view owner,
                                              const Digest& program_sha256);

/// A request's end, as it is written.
struct Ended {
  Completion completion;
  KeptAnswer answer;
  CapturedOutput captured;  // of a run whose answer does not have it
  std::string client;       // whose request it is: set when it is written
};

/// What an end takes of the capacity for answers.
uint64_t kept_bytes(const Ended& ended);

/// The end of a request that is cancelled while nothing of it runs.
Ended cancelled_end(const Uuid& request_id, std::string reason);

class RequestTable {
 public:
  /// What may be queued at once.
  struct QueueBounds {
    uint64_t requests_max = limits::kQueuedRequestsMax;
    uint64_t client_requests_max = limits::kQueuedRequestsOfClientMax;
  };
  /// Fills `queue`, which is empty, with what is queued.
  static Result<std::unique_ptr<RequestTable>> create(Database& database, Outbox& outbox, FairQueue& queue,
                                                      UndoLog& undo_log, const QueueBounds& bounds, const Clock& clock);

  struct Admitted {
    Admission::Kind kind = Admission::Kind::kAttached;
    FairQueue::Item item;  // of what is new: its place in the queue
  };
  /// New, or attached to what is known; kConflict if the id is taken by another program or owner; kBusy or kRateLimited
  /// if the queue is full, or has enough of this client. What is attached to as something to be polled is synchronous
  /// no more.
  Result<Admitted> admit(const Submission& submission, const EncodedText& program, uint64_t blob_bytes, WallTime now);
  /// Whether it takes nothing more, whoever sends it.
  bool is_full() const { return queue_.size() >= bounds_.requests_max; }

  struct Claimed {
    int64_t seq = 0;
    uint64_t program_bytes = 0;
    Claim claim;  // without program and blobs
  };
  /// queued → assigned, for the next in the queue of those that are (not) for several GPUs; nullopt if none is queued.
  Result<std::optional<Claimed>> claim_next(const ExecutorRef& executor, bool for_several_gpus, WallTime now);

  /// Where a request is once its run was given up.
  enum class GivenUp {
    kQueued,         // at its old place
    kCancelled,      // as somebody had asked for: it has ended with the given completion
    kNoAttemptLeft,  // nothing changed
  };
  /// assigned → queued: its attempt is not used up. Requires: the claim was given to nobody.
  Result<GivenUp> unclaim(const Fence& fence, const std::string& reason, Ended& if_cancelled, WallTime now);
  /// assigned or running → queued, if attempts are left. A request that came as far as `gap_from` may lack records of
  /// its instructions, and its audit says so; where no attempt is left, `records` are what it must say.
  Result<GivenUp> requeue(const Fence& fence, const std::string& reason, schema::State gap_from, Ended& if_cancelled,
                          std::vector<AuditRecord>& records, WallTime now);

  Status note(const Fence& fence, const RunNotes& notes);
  /// With what the run said of itself last.
  Status finish(const Fence& fence, const RunNotes& notes, Ended& ended, WallTime now);
  /// queued → rejected. kConflict where `only_synchronous` and it is not.
  Status reject(const Uuid& request_id, Ended& ended, bool only_synchronous, WallTime now);

  /// What became of the wish to end a request.
  struct Cancelled {
    schema::State state = schema::State::kCancelled;  // after that
    std::optional<Fence> to_end;                      // the run that has to end now
    bool has_ended = false;                           // by this call
  };
  /// queued → cancelled; one that runs is marked, so that it is not started again. kConflict if it has ended otherwise.
  Result<Cancelled> cancel(const Uuid& request_id, CancelBy by, Ended& ended, WallTime now);

 private:
  struct Row {
    Uuid request_id;
    int64_t seq = 0;
    schema::State state = schema::State::kQueued;
    int attempt = 0;
    int max_attempts = 1;
    AuditPosition audit;
    FairQueue::Item item;
    bool synchronous = true;
    bool cancel_requested = false;
  };

  RequestTable(Database& database, Outbox& outbox, FairQueue& queue, UndoLog& undo_log, const QueueBounds& bounds,
               const Clock& clock)
      : database_(database), outbox_(outbox), queue_(queue), undo_log_(undo_log), bounds_(bounds), clock_(clock) {}
  Status prepare();
  Status fill_queue();
  Result<Row> load(const Uuid& request_id);
  /// The row of a fence that holds. `to`: where it is to move.
  Result<Row> load_fenced(const Fence& fence, std::optional<schema::State> to);
  Result<std::optional<Admission::Kind>> existing(const Submission& submission);
  Status check_room(const Submission& submission) const;
  Result<FairQueue::Item> insert(const Submission& submission, const EncodedText& program, WallTime now,
                                 const AuditPosition& audit);
  Status finish_row(Row& row, const RunNotes& notes, Ended& ended, WallTime now);
  /// Numbers the records, which some statement then writes back with the row.
  Status record(Row& row, const std::vector<AuditRecord>& records);

  void push(const FairQueue::Item& item);
  FairQueue::Item remove(const FairQueue::Item& item);
  SteadyTime steady_time_of(int64_t wall_us) const;

  Database& database_;
  Outbox& outbox_;
  FairQueue& queue_;
  UndoLog& undo_log_;
  const QueueBounds bounds_;
  const Clock& clock_;
  Statement find_;
  Statement find_existing_;
  Statement insert_;
  Statement insert_program_;
  Statement insert_blob_;
  Statement insert_label_;
  Statement detach_;
  Statement find_queued_;
  Statement assign_;
  Statement unassign_;
  Statement note_;
  Statement finish_;
  Statement insert_answer_;
  Statement insert_output_;
  Statement requeue_;
  Statement request_cancel_;
};

}  // namespace kcoral::store
