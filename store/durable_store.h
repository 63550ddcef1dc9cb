// The Store on one machine: SQLite for what is true of requests, RocksDB for content and audit.
//
// Who does what: the writer's thread changes rows, gives those that are queued to idle executors in the same commit,
// and runs whatever follows it; `intake_` stores uploads; `service_` loads what a claim or a watch needs and stores
// answers; `lookups_` answers questions, which may be large and keep no run waiting; the syncer makes content durable
// for all of them; the copier moves audit records. A call travels through these as a chain of closures that hold its
// InFlight token, so that `close` knows when the last is done. Content is always durable before the row that refers to
// it is committed.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "store/answers.h"
#include "store/audit_copier.h"
#include "store/blobs.h"
#include "store/content.h"
#include "store/data_dir.h"
#include "store/fair_queue.h"
#include "store/in_flight.h"
#include "store/live_outputs.h"
#include "store/meters.h"
#include "store/outbox.h"
#include "store/pending_notes.h"
#include "store/program_text.h"
#include "store/reader.h"
#include "store/request_table.h"
#include "store/retention.h"
#include "store/store.h"
#include "store/syncer.h"
#include "store/thread_pool.h"
#include "store/undo_log.h"
#include "store/watches.h"
#include "store/writer.h"

namespace kcoral::store {

class DurableStore final : public Store {
 public:
  static Result<std::unique_ptr<DurableStore>> open(const StoreConfig& config, Clock& clock);
  ~DurableStore() override;

  void admit(Submission submission, std::function<void(Result<Admission>)> done) override;
  WatchId watch(const Uuid& request_id, std::function<void(Result<AnswerPtr>)> done) override;
  WatchId watch_end(const Uuid& request_id, std::function<void(Status)> done) override;
  void unwatch(WatchId id) override;
  void cancel(const Uuid& request_id, CancelBy by, std::function<void(Result<schema::State>)> done) override;
  void reject_if_queued(const Uuid& request_id, AnswerPtr answer, std::string reason) override;

  void serve(ExecutorPool& pool) override;
  void executor_became_idle() override;
  void give_back(const Fence& fence, std::string reason) override;
  void mark_running(const Fence& fence, int pid) override;
  void note_gpus(const Fence& fence, std::vector<int> gpu_ids) override;
  void note_output(const Fence& fence, OutputStream stream, std::shared_ptr<const UniqueFd> memory) override;
  void append_audit(const Fence& fence, std::vector<AuditRecord> records) override;
  void finish(const Fence& fence, Completion completion, std::function<void(Status)> done) override;
  void abandon(const Fence& fence, std::string reason, std::function<void(Status)> done) override;

  Status recover() override;
  /// Removes at once what is due, instead of now and then. Blocks.
  Status prune() { return retention_->prune(); }
  Result<BackupSummary> back_up(const std::string& directory, const BackupProgress& progress) override;
  Counts counts() const override;
  Figures figures() const override;

  void status(const Uuid& request_id, std::function<void(Result<RequestStatus>)> done) override;
  void history(const HistoryQuery& query, std::function<void(Result<HistoryPage>)> done) override;
  void program(const Uuid& request_id, std::function<void(Result<std::string>)> done) override;
  void audit(const Uuid& request_id, std::function<void(Result<std::vector<std::string>>)> done) override;
  void output(const Uuid& request_id, OutputStream stream, uint64_t offset,
              std::function<void(Result<OutputPiece>)> done) override;
  void close() override;

 private:
  struct Admitting {
    Submission submission;
    std::function<void(Result<Admission>)> done;
    InFlight::Token token;
    EncodedText program;
    uint64_t blob_bytes = 0;
    std::vector<Digest> missing;
    bool found_queue_full = false;
    std::optional<Reader::StatusRow> row;  // of what is new and to be polled, as the transaction leaves it
  };
  /// A request that was assigned and is not with its executor yet.
  struct Assignment {
    ExecutorRef executor;
    RequestTable::Claimed claimed;
    std::shared_ptr<Admitting> admitted;  // in the same transaction; null if it was before
    int put_backs = 0;                    // how often it was put back before
    InFlight::Token token;
  };
  struct Ending {
    enum class From {
      kAttempt,
      kQueue,
      kQueueIfSynchronous,
    };
    From from = From::kAttempt;
    Fence fence;
    RunNotes notes;
    Ended ended;
    std::function<void(Status)> done;
    InFlight::Token token;
  };
  struct PutBack {
    Fence fence;
    std::string reason;
  };
  using AdmittingPtr = std::shared_ptr<Admitting>;
  using AssignmentPtr = std::shared_ptr<Assignment>;
  using EndingPtr = std::shared_ptr<Ending>;

  /// The error of whatever comes after the end.
  static Error closed() { return {ErrorKind::kBusy, "the server is shutting down"}; }

  DurableStore(DataDir data_dir, const StoreConfig& config, Clock& clock)
      : clock_(clock),
        data_dir_(std::move(data_dir)),
        gpu_count_max_(config.gpu_count_max),
        queue_bounds_{config.queued_requests_max, config.queued_requests_of_client_max} {}
  Status open_parts(const StoreConfig& config);
  Status count_rows();

  void take_in(const AdmittingPtr& admitting);
  Status hold_blobs(Admitting& admitting);
  void on_blobs_held(const AdmittingPtr& admitting);
  Result<Admission> admission_without_blobs(const Admitting& admitting);
  void insert(const AdmittingPtr& admitting);
  void on_not_admitted(const AdmittingPtr& admitting, const Error& error);

  template <typename T>
  void look_up(std::function<void(Result<T>)> done, std::function<Result<T>(Reader& reader)> find);
  Result<std::vector<std::string>> audit_records(Reader& reader, const Uuid& request_id);
  RequestStatus with_position(Reader::StatusRow row) const;
  Result<std::string> output_so_far(Reader& reader, const Uuid& request_id, OutputStream stream, bool& is_complete);

  void note(const Fence& fence, RunNotes notes);
  /// What an operation had taken that failed.
  void keep_notes(PendingNotes::ByRun taken);
  void write_notes_soon();
  /// Within a transaction. What comes from an attempt that is over is passed over.
  Status write_notes(const PendingNotes::ByRun& taken);
  /// `operation`, with what the request's runs have said of themselves written before it.
  Writer::Operation after_notes(const Uuid& request_id, Writer::Operation operation);

  /// `look`, on a thread of `pool`: what the watch is told if the request has ended by then.
  WatchId watch_until(const Uuid& request_id, Watches::Done done, ThreadPool& pool,
                      std::function<Result<std::optional<AnswerPtr>>()> look);
  /// Null while the request is not terminal.
  Result<AnswerPtr> answer_if_ended(const Uuid& request_id);

  /// What ends each batch of the writer.
  Result<Writer::AfterCommit> assign_queued();
  static void note_assigned(RequestStatus& status, const Assignment& assignment, WallTime now);
  void on_assigned();
  void on_assigning_failed(const Error& error);
  void load_claim(const AssignmentPtr& assignment);
  /// False if it is not filled, or was cancelled meanwhile.
  bool hand_over(const AssignmentPtr& assignment, bool is_filled);
  Status fill_claim(Assignment& assignment);
  Status fill_claim(Claim& claim, std::string_view program_text, const std::vector<Digest>& blobs);
  void pass_over(const AssignmentPtr& assignment, const Error& error);
  /// Its executor is idle as before.
  void end_unstarted(const AssignmentPtr& assignment, schema::State state, const Error& error);
  void put_back(const AssignmentPtr& assignment, const Error& error);
  /// Makes the row say so; the counts do already.
  void undo_claim(PutBack put_back, InFlight::Token token, std::function<void()> done);
  /// As the table did it in the transaction that was committed.
  void on_ended(const Uuid& request_id, const Ended& ended);
  /// Tells the pool, or whoever loads the claim.
  void end_run(const Fence& fence);
  /// Submits what may make a request claimable.
  void submit_arrival(Writer::Operation operation);
  void retry_put_backs();

  void reject(Ending::From from, const Uuid& request_id, Completion completion, std::function<void(Status)> done,
              InFlight::Token token);
  void end(EndingPtr ending);
  void take_captured(const EndingPtr& ending);
  void store_ending(const EndingPtr& ending);
  void commit_ending(const EndingPtr& ending);
  void drop_answer(const EndingPtr& ending);
  void give_up(const Fence& fence, std::string reason, schema::State gap_from, std::function<void(Status)> done,
               InFlight::Token token);
  Status sweep_answers(const std::vector<Reader::Unfinished>& unfinished);
  Status reject_too_large(const std::vector<Reader::Unfinished>& unfinished, const InFlight::Token& token);
  Status abandon_all(const std::vector<Reader::Unfinished>& unfinished, const InFlight::Token& token);

  Clock& clock_;
  DataDir data_dir_;
  const int gpu_count_max_;
  const RequestTable::QueueBounds queue_bounds_;
  InFlight in_flight_;
  bool closed_ = false;

  std::unique_ptr<Database> database_;
  std::unique_ptr<Outbox> outbox_;          // the writer's thread only
  std::unique_ptr<RequestTable> requests_;  // the writer's thread only
  std::unique_ptr<Readers> readers_;        // declared after database_: readers close before the writer
  std::unique_ptr<Content> content_;
  std::unique_ptr<Blobs> blobs_;

  FairQueue queue_;
  UndoLog undo_log_;  // the writer's thread only
  PendingNotes notes_;
  bool notes_wait_for_room_ = false;  // the writer's thread only
  LiveOutputs outputs_;
  Watches watches_;
  Meters meters_;
  std::atomic<ExecutorPool*> pool_{nullptr};
  std::atomic<bool> is_short_{false};      // the last request was put back; nothing is assigned until somebody is idle
  std::map<Uuid, AdmittingPtr> admitted_;  // the writer's thread only: by the transaction that is open
  std::vector<AssignmentPtr> assigned_;    // the writer's thread only: by the transaction that is open
  std::map<Uuid, int> put_backs_;          // the writer's thread only: of queued requests, how often
  std::atomic<bool> put_backs_are_due_{false};  // somebody came idle
  std::vector<PutBack> put_backs_delayed_;      // the writer's thread only: what found no room on the disk
  Mutex loading_mutex_;                         // held while a claim is handed over
  std::map<Fence, bool> loading_ KCORAL_GUARDED_BY(loading_mutex_);  // claims on their way: whether they are cancelled
  std::atomic<uint64_t> queued_{0};
  std::atomic<uint64_t> arriving_{0};  // operations on their way that may make a request claimable
  std::atomic<uint64_t> in_progress_{0};

  std::unique_ptr<Writer> writer_;
  std::unique_ptr<Syncer> syncer_;
  std::unique_ptr<ThreadPool> intake_;
  std::unique_ptr<ThreadPool> service_;
  std::unique_ptr<ThreadPool> lookups_;
  std::unique_ptr<AuditCopier> copier_;
  std::unique_ptr<Retention> retention_;
};

}  // namespace kcoral::store
