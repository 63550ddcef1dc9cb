// The store: every request from admission to outcome, every blob, every answer, and the audit of how it came about.
//
// It promises (ARCHITECTURE.md, "Durable means"): `admit` calls back only after the commit that admits; `finish` only
// after the answer's content and the commit of the outcome are durable; after a kill at any moment nothing admitted is
// missing, no request has two outcomes, and no more than its attempts were started.
//
// Store is thread-safe. Its functions return at once; callbacks run on the store's own threads and must not block. Once
// the store is closed nothing is accepted any more, and the callbacks that say so run on the caller's thread, before
// the call returns: nobody may hold a lock that a callback takes. A request's callbacks and notifications come in the
// order of its commits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/sha256.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "schema/outcome.h"
#include "schema/program.h"
#include "schema/state.h"
#include "store/figures.h"
#include "store/lookups.h"

namespace kcoral::store {

/// A blob that came with a submission, hashed while it streamed in.
struct StagedBlob {
  Digest sha256;
  std::shared_ptr<const SealedMemory> content;
};

struct Submission {
  Uuid request_id;
  std::string owner;        // the token's name; empty on a server without tokens
  std::string client;       // for history, fairness and quotas
  std::string peer;         // address
  bool synchronous = true;  // its client waits: it may expire in the queue, and ends when nobody waits any more
  int max_attempts = 1;
  std::string program_text;  // verbatim
  Digest program_sha256;
  schema::Program program;         // parse_program(program_text)
  std::vector<StagedBlob> staged;  // distinct, each referenced by the program
};

struct Admission {
  enum class Kind {
    kAdmitted,   // a new request; its row is committed
    kAttached,   // this id was admitted before with the same program by the same owner
    kCacheMiss,  // `missing` are not held; nothing was recorded, but what was staged is kept
  };
  Kind kind = Kind::kAdmitted;
  std::vector<Digest> missing;               // in program order
  std::optional<RequestStatus> status = {};  // when it was admitted, of what is new and to be polled
};

/// One started run of a request. Every later word about it must carry the same attempt, or it is refused.
struct Fence {
  Uuid request_id;
  int attempt = 0;
  auto operator<=>(const Fence&) const = default;
};

/// Whom a request is assigned to, for the audit and the status document.
struct ExecutorRef {
  std::string name;
  int pid = 0;  // of the executor's process, as the host sees it
};

/// A request that was assigned to an executor, with all that it needs to run.
struct Claim {
  Fence fence;
  int gpu_count = 1;
  int priority = 0;
  std::chrono::milliseconds timeout{};
  uint64_t output_limit_bytes = 0;
  std::shared_ptr<const SealedMemory> program;
  std::vector<StagedBlob> blobs;       // distinct, in program order
  std::chrono::microseconds queued{};  // from admission (or being queued again) to this claim
};

/// Those who run requests, as the store sees them. Its functions are called on the store's threads and must not block.
class ExecutorPool {
 public:
  virtual ~ExecutorPool() = default;

  /// An idle executor, which is taken from now on; nullopt if none is idle. Programs for several GPUs have executors of
  /// their own, which take no others.
  virtual std::optional<ExecutorRef> take(bool for_several_gpus) = 0;
  /// It was taken for nothing, and is idle as before.
  virtual void put_back(const ExecutorRef& executor) = 0;
  /// What it was taken for. With an error it gets nothing now, and should not be idle again before a pause: memory,
  /// descriptors or disk are short, and whatever comes next is likely to meet that, too.
  virtual void assign(const ExecutorRef& executor, Result<Claim> claim) = 0;
  /// That run is to be ended: its outcome follows as ever, and says whether it was. Comes after its `assign`.
  virtual void cancel(const Fence& fence) = 0;
};

/// One audit record before the store numbers it: a JSON object text with "event" and its fields, without "seq" and
/// "at".
struct AuditRecord {
  WallTime at;
  std::string members;  // e.g. `"event":"instruction_started","index":0,"op":"upload","id":"m"`
};

/// The end of a request.
struct Completion {
  schema::State state = schema::State::kCompleted;  // terminal
  std::shared_ptr<const schema::Answer> answer;
  std::string reason;      // for the audit record "finished"
  std::string error_kind;  // of the status document: its wire name, also for a failed instruction; empty if none
  std::string error_message;
  std::string results_summary = "[]";  // JSON array of {"key","type","size"} for the status document
  schema::OutcomeTimes times;
  std::vector<AuditRecord> records;  // of the run, not yet appended; they come before "finished"
};

/// An end whose answer is `error`, which the status document repeats. Without times and records.
Completion completion_with_error(const Uuid& request_id, schema::State state, const Error& error, std::string reason);

struct Counts {
  uint64_t queued = 0;
  uint64_t in_progress = 0;  // assigned or running
};

/// How long, and how much of, what has ended is kept. Blobs are no part of this.
struct RetentionBounds {
  std::optional<std::chrono::hours> history;   // since submission; none: for ever
  std::optional<uint64_t> artifact_bytes_max;  // of all answers together; none: whatever the disk has room for
};

struct StoreConfig {
  std::string data_dir;
  uint64_t blob_cache_bytes = limits::kBlobCacheBytesDefault;  // hot memory
  int gpu_count_max = limits::kGpuCountMax;                    // of a program that can run on this server
  uint64_t queued_requests_max = limits::kQueuedRequestsMax;
  uint64_t queued_requests_of_client_max = limits::kQueuedRequestsOfClientMax;
  RetentionBounds retention = {};
};

/// What a backup has.
struct BackupSummary {
  uint64_t requests = 0;
  uint64_t bytes = 0;         // of all its files
  uint64_t bytes_shared = 0;  // of these in files that are the store's own as well
};
/// Told now and then how far a backup is; the total is 0 while it is not known. False: it is given up.
using BackupProgress = std::function<bool(uint64_t bytes_done, uint64_t bytes_total)>;

/// Who wants a request to end.
enum class CancelBy {
  kClient,  // somebody asked for it
  kNobody,  // the last client that waited for its answer went away: nothing happens to one that is polled
};

class Store : public Lookups {
 public:
  using WatchId = uint64_t;
  using AnswerPtr = std::shared_ptr<const schema::Answer>;

  // --- gateway ---

  /// Errors: kParse (a blob has not the length that a tensor demands), kConflict (the id is taken by another program or
  /// owner), kBusy (the queue or the disk is full), kRateLimited (the queue has enough of this client), kEngine.
  virtual void admit(Submission submission, std::function<void(Result<Admission>)> done) = 0;

  /// Calls `done` once with the answer, at once if the request is terminal already. kNotFound for an unknown id, kGone
  /// when its artifacts were pruned.
  virtual WatchId watch(const Uuid& request_id, std::function<void(Result<AnswerPtr>)> done) = 0;
  /// As `watch`, but only tells that the request is terminal: its answer is not loaded.
  virtual WatchId watch_end(const Uuid& request_id, std::function<void(Status)> done) = 0;
  /// After it returns, the watch's callback will not run (or has finished running).
  virtual void unwatch(WatchId id) = 0;

  /// Records durably that the request is to be cancelled. One that is queued has ended when `done` is called; one that
  /// runs ends when its processes have: watch it. Calls `done` with the state after that: kCancelled also if it was
  /// before. Errors: kNotFound; kConflict if it has ended otherwise.
  virtual void cancel(const Uuid& request_id, CancelBy by, std::function<void(Result<schema::State>)> done) = 0;

  /// Moves a synchronous request that is still queued to rejected with `answer`; otherwise changes nothing.
  virtual void reject_if_queued(const Uuid& request_id, AnswerPtr answer, std::string reason) = 0;

  // --- scheduler ---

  /// Assigns queued requests (priority, then submission order) to idle executors of `pool` from now on, each durably:
  /// in the commit that admits or requeues it, if one is idle then. A request whose blobs or program are gone or
  /// damaged is finished as failed (engine) and passed over. When memory, descriptors or disk run short, it is queued
  /// as before, no attempt is used up, and the executor gets the error. Requires: `recover` was called; `pool` lives
  /// until `close` has returned.
  virtual void serve(ExecutorPool& pool) = 0;

  /// An executor of the pool has become idle.
  virtual void executor_became_idle() = 0;

  /// The executor was lost before it was told of the claim: queued again at its old place, with no attempt used up.
  virtual void give_back(const Fence& fence, std::string reason) = 0;

  /// assigned → running. Not waited for: within limits::kRecordsDelayStore, or with the end of the run if that comes
  /// sooner. `pid` is the runtime's, as the host sees it.
  virtual void mark_running(const Fence& fence, int pid) = 0;

  /// It has those devices now. Not waited for, as above.
  virtual void note_gpus(const Fence& fence, std::vector<int> gpu_ids) = 0;

  /// The run's output as far as it is captured, which its executor goes on appending to: a memfd, raw bytes. Until it
  /// ends, `output` reads from there.
  virtual void note_output(const Fence& fence, OutputStream stream, std::shared_ptr<const UniqueFd> memory) = 0;

  /// Appends to the request's audit, numbered in order; may come after the end of the request.
  virtual void append_audit(const Fence& fence, std::vector<AuditRecord> records) = 0;

  /// Ends the request. A stale fence or a terminal request is kConflict and changes nothing.
  virtual void finish(const Fence& fence, Completion completion, std::function<void(Status)> done) = 0;

  /// Its executor or server died under it: queued again if attempts are left, else interrupted with an engine error
  /// that says `reason`. If it was running, its audit gets a `gap` record first.
  virtual void abandon(const Fence& fence, std::string reason, std::function<void(Status)> done) = 0;

  // --- the server ---

  /// On start, before anything is claimed and once every executor of an earlier server is gone: what was assigned or
  /// running is abandoned with a reason, what needs more GPUs than this server has is rejected, leftovers of
  /// half-written content are swept, audit records not yet copied are.
  virtual Status recover() = 0;

  /// Makes `directory` (an absolute path: nothing, or an empty directory) a data directory with all that is committed
  /// at one moment of the call. Blocks, and nobody else waits for it. Requires: `recover` has returned; one at a time.
  /// Errors, after which nothing is there: kEnvironment (the directory), kBusy (no room), kCancelled (as `progress`
  /// said), kEngine.
  virtual Result<BackupSummary> back_up(const std::string& directory, const BackupProgress& progress) = 0;

  virtual Counts counts() const = 0;
  /// For whoever watches the service. Takes some microseconds.
  virtual Figures figures() const = 0;

  /// Waits until everything accepted so far is committed, then stops the threads. Callbacks have all run.
  virtual void close() = 0;
};

/// Opens or creates the data directory (mode 0700) and takes its lock; kEnvironment with one clear line if it cannot be
/// written, is a directory of something else, or another server holds it.
Result<std::unique_ptr<Store>> open_store(const StoreConfig& config, Clock& clock);

}  // namespace kcoral::store
