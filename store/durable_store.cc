#include "store/durable_store.h"

#include <algorithm>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mutex.h"
#include "schema/limits.h"
#include "store/queue_database.h"

namespace kcoral::store {
namespace {

using schema::State;
using AfterCommit = Writer::AfterCommit;

// Two of each: one may wait for the disk while the other computes digests or copies.
constexpr size_t kIntakeThreads = 2;
constexpr size_t kServiceThreads = 2;
constexpr size_t kLookupThreads = 2;

bool needs_intake(const Submission& submission) {
  return !submission.staged.empty() || !submission.program.blobs.empty() ||
         submission.program_text.size() >= limits::kProgramCompressFromBytes;
}

/// Whether the answer of such a request says what its program printed.
bool has_result(State state) { return state == State::kCompleted || state == State::kFailed; }

RequestStatus status_when_queued(const Submission& submission, WallTime now) {
  RequestStatus status;
  status.request_id = submission.request_id;
  status.owner = submission.owner;
  status.client = submission.client;
  status.priority = submission.program.options.priority;
  status.max_attempts = submission.max_attempts;
  status.labels = submission.program.options.labels;
  status.submitted_at = now;
  status.program_sha256 = submission.program_sha256;
  return status;
}

/// Collects what several calls report, for somebody who waits for all of them.
class Collector {
 public:
  explicit Collector(size_t expected) : expected_(expected) {}

  void report(Status status) {
    const MutexLock lock(mutex_);
    if (!status && first_error_) first_error_ = std::move(status);
    if (--expected_ == 0) all_reported_.notify_all();
  }

  /// The first error, if any.
  Status wait() {
    const MutexLock lock(mutex_);
    while (expected_ > 0) all_reported_.wait(mutex_);
    return first_error_;
  }

 private:
  Mutex mutex_;
  ConditionVariable all_reported_;
  size_t expected_ KCORAL_GUARDED_BY(mutex_);
  Status first_error_ KCORAL_GUARDED_BY(mutex_);
};

}  // namespace

Result<std::unique_ptr<Store>> open_store(const StoreConfig& config, Clock& clock) {
  auto store = DurableStore::open(config, clock);
  if (!store) return fail(store.error());
  return std::unique_ptr<Store>(std::move(*store));
}

Result<std::unique_ptr<DurableStore>> DurableStore::open(const StoreConfig& config, Clock& clock) {
  auto data_dir = DataDir::open(config.data_dir);
  if (!data_dir) return fail(data_dir.error());
  std::unique_ptr<DurableStore> store(new DurableStore(std::move(*data_dir), config, clock));
  if (auto opened = store->open_parts(config); !opened) return fail(opened.error());
  return store;
}

Status DurableStore::open_parts(const StoreConfig& config) {
  auto database = open_queue_database(data_dir_.database_path());
  if (!database) return fail(database.error());
  database_ = std::move(*database);
  auto outbox = Outbox::create(*database_);
  if (!outbox) return fail(outbox.error());
  outbox_ = std::move(*outbox);
  auto requests = RequestTable::create(*database_, *outbox_, queue_, undo_log_, queue_bounds_, clock_);
  if (!requests) return fail(requests.error());
  requests_ = std::move(*requests);
  if (auto counted = count_rows(); !counted) return counted;
  readers_ = std::make_unique<Readers>(data_dir_.database_path());
  auto content = Content::open(data_dir_.content_path());
  if (!content) return fail(content.error());
  content_ = std::move(*content);
  if (auto synced = data_dir_.sync(); !synced) return synced;
  blobs_ = std::make_unique<Blobs>(*content_, config.blob_cache_bytes);

  auto retention = Retention::create(config.retention, *database_, *readers_, *content_, clock_);
  if (!retention) return fail(retention.error());
  retention_ = std::move(*retention);

  syncer_ = std::make_unique<Syncer>(*content_);
  intake_ = std::make_unique<ThreadPool>(kIntakeThreads, "store-intake");
  service_ = std::make_unique<ThreadPool>(kServiceThreads, "store-service");
  lookups_ = std::make_unique<ThreadPool>(kLookupThreads, "store-lookups");
  auto writer = Writer::create(*database_, undo_log_,
                               {.apply = [this] { return assign_queued(); },
                                .failed = [this](const Error& error) { on_assigning_failed(error); },
                                .bytes = 0},
                               [this] {
                                 retry_put_backs();
                                 if (outbox_->take_appended()) copier_->wake();
                               });
  if (!writer) return fail(writer.error());
  writer_ = std::move(*writer);
  copier_ = std::make_unique<AuditCopier>(*readers_, *content_, *writer_, *outbox_);
  return {};
}

DurableStore::~DurableStore() { close(); }

void DurableStore::close() {
  if (std::exchange(closed_, true)) return;
  in_flight_.close_and_wait();
  // Any part may be missing if opening failed.
  if (retention_) retention_->close();
  if (copier_) copier_->close();
  if (writer_) writer_->close();
  if (service_) {
    // What still waits would wait for ever. Its request is kept, and goes on at the next start.
    service_->post([this] { watches_.fire_rest(fail(closed())); });
    service_->close();
  }
  if (lookups_) lookups_->close();
  if (intake_) intake_->close();
  if (syncer_) syncer_->close();
}

Status DurableStore::count_rows() {
  auto in_progress = database_->query_text("SELECT count(*) FROM requests WHERE state IN (1, 2)");
  if (!in_progress) return fail(in_progress.error());
  queued_ = queue_.size();
  in_progress_ = std::stoull(*in_progress);
  return {};
}

// --- admission ---

void DurableStore::admit(Submission submission, std::function<void(Result<Admission>)> done) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return done(fail(closed()));
  // Also what brings no content: its answer would find no room.
  const bool blocks = needs_intake(submission) || content_->is_out_of_space();
  auto admitting = std::make_shared<Admitting>();
  admitting->submission = std::move(submission);
  admitting->done = std::move(done);
  admitting->token = std::move(token);
  if (blocks) {
    intake_->post([this, admitting] { take_in(admitting); });
    return;
  }
  admitting->program = encode_text(admitting->submission.program_text);
  insert(admitting);
}

void DurableStore::take_in(const AdmittingPtr& admitting) {
  failpoint("store.blobs.staged");
  if (auto held = hold_blobs(*admitting); !held) return admitting->done(fail(held.error()));
  failpoint("store.blobs.stored");
  if (admitting->missing.empty()) admitting->program = encode_text(admitting->submission.program_text);
  // Also what somebody else has stored and not yet synced must be durable before a row refers to it. A disk that was
  // full is asked again whatever there is to sync.
  const auto& blobs = admitting->submission.program.blobs;
  if (!content_->is_out_of_space() &&
      std::all_of(blobs.begin(), blobs.end(), [this](const Digest& blob) { return content_->is_synced(blob); })) {
    return on_blobs_held(admitting);
  }
  syncer_->after_sync([this, admitting](const Status& synced) {
    if (!synced) return admitting->done(fail(synced.error()));
    failpoint("store.blobs.synced");
    on_blobs_held(admitting);
  });
}

void DurableStore::on_blobs_held(const AdmittingPtr& admitting) {
  if (admitting->missing.empty()) return insert(admitting);
  meters_.blobs_missing.add(admitting->missing.size());
  intake_->post([this, admitting] { admitting->done(admission_without_blobs(*admitting)); });
}

Status DurableStore::hold_blobs(Admitting& admitting) {
  const Submission& submission = admitting.submission;
  for (const StagedBlob& blob : submission.staged) {
    if (auto kept = blobs_->keep(blob); !kept) return kept;
  }
  for (const Digest& digest : submission.program.blobs) {
    auto bytes = blobs_->size_bytes(digest);
    if (!bytes) return fail(bytes.error());
    if (!*bytes) {
      admitting.missing.push_back(digest);
      continue;
    }
    if (auto fits = schema::check_blob_length(submission.program, digest, **bytes); !fits) return fits;
    admitting.blob_bytes += **bytes;
  }
  return {};
}

/// A request that was admitted before needs its blobs no more: it is attached to all the same.
Result<Admission> DurableStore::admission_without_blobs(const Admitting& admitting) {
  auto reader = readers_->lease();
  if (!reader) return fail(reader.error());
  auto standing = (*reader)->standing(admitting.submission.request_id);
  if (!standing) return fail(standing.error());
  if (!*standing) return Admission{Admission::Kind::kCacheMiss, admitting.missing};
  auto kind = admission_of_known_id(admitting.submission, (*standing)->owner, (*standing)->program_sha256);
  if (!kind) return fail(kind.error());
  return Admission{*kind, {}};
}

void DurableStore::insert(const AdmittingPtr& admitting) {
  submit_arrival(
      {.apply = [this, admitting]() -> Result<AfterCommit> {
         failpoint("store.admit.begun");
         const WallTime now = clock_.wall_now();
         auto admitted = requests_->admit(admitting->submission, admitting->program, admitting->blob_bytes, now);
         if (!admitted) {
           admitting->found_queue_full = requests_->is_full();
           return fail(admitted.error());
         }
         if (admitted->kind == Admission::Kind::kAdmitted) {
           admitted_[admitting->submission.request_id] = admitting;
           if (!admitting->submission.synchronous) {
             admitting->row = {status_when_queued(admitting->submission, now), std::move(admitted->item)};
           }
         }
         failpoint("store.admit.applied");
         return AfterCommit([this, admitting, kind = admitted->kind] {
           failpoint("store.admit.committed");
           if (kind != Admission::Kind::kAdmitted) return admitting->done(Admission{kind, {}});
           ++queued_;
           (admitting->submission.synchronous ? meters_.admitted_synchronous : meters_.admitted_polled).add();
           Admission admission{kind, {}};
           if (admitting->row) admission.status = with_position(std::move(*admitting->row));
           admitting->done(std::move(admission));
         });
       },
       .failed = [this, admitting](const Error& error) { on_not_admitted(admitting, error); },
       .bytes = admitting->program.bytes.size()});
}

void DurableStore::on_not_admitted(const AdmittingPtr& admitting, const Error& error) {
  // A full disk is busy, too.
  if (error.kind == ErrorKind::kBusy && admitting->found_queue_full) meters_.refused_queue_full.add();
  if (error.kind == ErrorKind::kRateLimited) meters_.refused_client_limit.add();
  admitting->done(fail(error));
}

// --- runs ---

void DurableStore::note_output(const Fence& fence, OutputStream stream, std::shared_ptr<const UniqueFd> memory) {
  outputs_.note(fence, stream, std::move(memory));
}

// --- ends ---

void DurableStore::finish(const Fence& fence, Completion completion, std::function<void(Status)> done) {
  KCORAL_CHECK(schema::is_terminal(completion.state) && completion.answer);
  InFlight::Token token = in_flight_.enter();
  if (!token) return done(fail(closed()));
  auto ending = std::make_shared<Ending>();
  ending->fence = fence;
  ending->ended.completion = std::move(completion);
  ending->done = std::move(done);
  ending->token = std::move(token);
  end(std::move(ending));
}

void DurableStore::reject_if_queued(const Uuid& request_id, AnswerPtr answer, std::string reason) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return;
  Completion completion;
  completion.state = State::kRejected;
  completion.answer = std::move(answer);
  completion.error_kind = info(ErrorKind::kBusy).wire_name;
  completion.error_message = reason;
  completion.reason = std::move(reason);
  reject(
      Ending::From::kQueueIfSynchronous, request_id, std::move(completion), [](const Status&) {}, std::move(token));
}

void DurableStore::reject(Ending::From from, const Uuid& request_id, Completion completion,
                          std::function<void(Status)> done, InFlight::Token token) {
  auto ending = std::make_shared<Ending>();
  ending->from = from;
  ending->fence.request_id = request_id;
  ending->ended.completion = std::move(completion);
  ending->done = std::move(done);
  ending->token = std::move(token);
  end(std::move(ending));
}

void DurableStore::end(EndingPtr ending) {
  const bool has_output = ending->from == Ending::From::kAttempt && outputs_.has(ending->fence.request_id) &&
                          !has_result(ending->ended.completion.state);
  auto small = encode_if_small(*ending->ended.completion.answer);
  if (small) ending->ended.answer = std::move(*small);
  if (small && !has_output) return commit_ending(ending);
  service_->post([this, ending = std::move(ending), is_small = small.has_value(), has_output] {
    if (has_output) take_captured(ending);
    is_small ? commit_ending(ending) : store_ending(ending);
  });
}

/// What the program had printed, where its answer has no room for it.
void DurableStore::take_captured(const EndingPtr& ending) {
  auto captured = outputs_.read_all(ending->fence.request_id);
  if (!captured) return spdlog::warn("request {}: {}", ending->fence.request_id.str(), captured.error().message);
  ending->ended.captured = std::move(*captured);
}

void DurableStore::store_ending(const EndingPtr& ending) {
  Completion& completion = ending->ended.completion;
  auto stored = store_answer(*content_, ending->fence.request_id, *completion.answer);
  if (!stored && ending->from == Ending::From::kAttempt) {
    const std::string reason = fmt::format("its answer could not be stored: {}", stored.error().message);
    spdlog::error("request {}: {}", ending->fence.request_id.str(), reason);
    Completion substitute = completion_with_error(ending->fence.request_id, State::kFailed,
                                                  {ErrorKind::kEngine, "the run ended, but " + reason}, reason);
    substitute.times = completion.times;
    substitute.records = std::move(completion.records);
    completion = std::move(substitute);
    return end(ending);  // which is small, and finds its room with the row
  }
  if (!stored) return ending->done(fail(stored.error()));
  ending->ended.answer = *stored;
  failpoint("store.answer.stored");
  syncer_->after_sync([this, ending](const Status& synced) {
    failpoint("store.answer.synced");
    if (synced) return commit_ending(ending);
    drop_answer(ending);
    ending->done(fail(synced.error()));
  });
}

void DurableStore::commit_ending(const EndingPtr& ending) {
  const Ended& ended = ending->ended;
  const auto* small = std::get_if<SmallAnswer>(&ended.answer);
  size_t bytes = small != nullptr ? small->content.size() : 0;
  for (const AuditRecord& record : ended.completion.records) bytes += record.members.size();
  for (const auto& [stream, text] : ended.captured) bytes += text.size();
  writer_->submit({.apply = [this, ending]() -> Result<AfterCommit> {
                     failpoint("store.finish.begun");
                     const WallTime now = clock_.wall_now();
                     const bool was_queued = ending->from != Ending::From::kAttempt;
                     const bool only_synchronous = ending->from == Ending::From::kQueueIfSynchronous;
                     if (!was_queued) notes_.take(ending->fence, ending->notes);
                     const Status changed =
                         was_queued ? requests_->reject(ending->fence.request_id, ending->ended, only_synchronous, now)
                                    : requests_->finish(ending->fence, ending->notes, ending->ended, now);
                     if (!changed) return fail(changed.error());
                     failpoint("store.finish.applied");
                     return AfterCommit([this, ending, was_queued] {
                       failpoint("store.finish.committed");
                       --(was_queued ? queued_ : in_progress_);
                       on_ended(ending->fence.request_id, ending->ended);
                       ending->done({});
                     });
                   },
                   .failed =
                       [this, ending](const Error& error) {
                         keep_notes({{ending->fence, std::move(ending->notes)}});
                         drop_answer(ending);
                         ending->done(fail(error));
                       },
                   .bytes = bytes});
}

void DurableStore::on_ended(const Uuid& request_id, const Ended& ended) {
  put_backs_.erase(request_id);
  outputs_.forget(request_id);
  retention_->note_kept(kept_bytes(ended));
  const Completion& completion = ended.completion;
  meters_.ended[static_cast<size_t>(completion.state)].add();
  meters_.clients.add(ended.client);
  if (completion.times.elapsed_ms > 0) {
    meters_.ran.observe(std::chrono::duration<double, std::milli>(completion.times.elapsed_ms));
  }
  watches_.fire_all(request_id, ended.completion.answer);
}

/// An answer that no row came to refer to.
void DurableStore::drop_answer(const EndingPtr& ending) {
  if (std::holds_alternative<SmallAnswer>(ending->ended.answer)) return;
  service_->post([this, ending] {
    auto dropped = content_->drop_artifact(ending->fence.request_id, std::get<ContentId>(ending->ended.answer));
    if (!dropped) spdlog::warn("{}", dropped.error().message);
  });
}

void DurableStore::abandon(const Fence& fence, std::string reason, std::function<void(Status)> done) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return done(fail(closed()));
  give_up(fence, std::move(reason), State::kRunning, std::move(done), std::move(token));
}

void DurableStore::give_up(const Fence& fence, std::string reason, State gap_from, std::function<void(Status)> done,
                           InFlight::Token token) {
  // Used only if no attempt is left, which the row knows.
  const Error last_word{ErrorKind::kEngine,
                        fmt::format("the run was lost: {} (attempt {}, and no other is left)", reason, fence.attempt)};
  auto ending = std::make_shared<Ending>();
  ending->fence = fence;
  ending->ended.completion = completion_with_error(fence.request_id, State::kInterrupted, last_word, reason);
  ending->done = std::move(done);
  ending->token = std::move(token);
  const auto cancelled = std::make_shared<Ended>(
      cancelled_end(fence.request_id, fmt::format("cancelled; its run was lost by then: {}", reason)));
  submit_arrival(after_notes(fence.request_id, {.apply = [this, ending, cancelled, gap_from]() -> Result<AfterCommit> {
                                                  failpoint("store.requeue.begun");
                                                  Completion& completion = ending->ended.completion;
                                                  auto given_up = requests_->requeue(
                                                      ending->fence, completion.reason, gap_from, *cancelled,
                                                      completion.records, clock_.wall_now());
                                                  if (!given_up) return fail(given_up.error());
                                                  failpoint("store.requeue.applied");
                                                  return AfterCommit([this, ending, cancelled, given_up = *given_up] {
                                                    failpoint("store.requeue.committed");
                                                    if (given_up == RequestTable::GivenUp::kNoAttemptLeft)
                                                      return end(ending);
                                                    --in_progress_;
                                                    outputs_.forget(ending->fence.request_id);
                                                    if (given_up == RequestTable::GivenUp::kQueued) {
                                                      ++queued_;
                                                      meters_.requeued_lost.add();
                                                    }
                                                    if (given_up == RequestTable::GivenUp::kCancelled) {
                                                      on_ended(ending->fence.request_id, *cancelled);
                                                    }
                                                    ending->done({});
                                                  });
                                                },
                                                .failed = [ending](const Error& error) { ending->done(fail(error)); },
                                                .bytes = 0}));
}

// --- cancellation ---

void DurableStore::cancel(const Uuid& request_id, CancelBy by, std::function<void(Result<State>)> done) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return done(fail(closed()));
  const std::string_view who = by == CancelBy::kClient ? "cancelled" : "cancelled, since its client had gone away,";
  const auto if_queued = std::make_shared<Ended>(cancelled_end(request_id, fmt::format("{} while it was queued", who)));
  writer_->submit(
      after_notes(request_id, {.apply = [this, request_id, by, if_queued, done]() -> Result<AfterCommit> {
                                 failpoint("store.cancel.begun");
                                 auto cancelled = requests_->cancel(request_id, by, *if_queued, clock_.wall_now());
                                 if (!cancelled) return fail(cancelled.error());
                                 failpoint("store.cancel.applied");
                                 return AfterCommit([this, request_id, if_queued, done, cancelled = *cancelled] {
                                   failpoint("store.cancel.committed");
                                   if (cancelled.has_ended) {
                                     --queued_;
                                     on_ended(request_id, *if_queued);
                                   }
                                   if (cancelled.to_end) end_run(*cancelled.to_end);
                                   done(cancelled.state);
                                 });
                               },
                               .failed = [done, token](const Error& error) { done(fail(error)); },
                               .bytes = 0}));
}

void DurableStore::end_run(const Fence& fence) {
  const MutexLock lock(loading_mutex_);
  const auto loading = loading_.find(fence);
  if (loading != loading_.end()) {
    loading->second = true;
  } else if (pool_ != nullptr) {
    pool_.load()->cancel(fence);
  }
}

// --- start ---

Status DurableStore::recover() {
  // Held to the end: nothing below is refused, or left waiting, because the store is closed meanwhile.
  const InFlight::Token token = in_flight_.enter();
  if (!token) return fail(closed());
  if (auto swept = content_->sweep(); !swept) return swept;
  failpoint("recovery.content.swept");
  std::vector<Reader::Unfinished> unfinished;
  {
    auto reader = readers_->lease();
    if (!reader) return fail(reader.error());
    auto rows = (*reader)->unfinished();
    if (!rows) return fail(rows.error());
    unfinished = std::move(*rows);
  }
  if (auto swept = sweep_answers(unfinished); !swept) return swept;
  failpoint("recovery.answers.swept");
  if (auto abandoned = abandon_all(unfinished, token); !abandoned) return abandoned;
  failpoint("recovery.runs.abandoned");
  if (auto rejected = reject_too_large(unfinished, token); !rejected) return rejected;
  retention_->start(*writer_);
  const Status copied = copier_->drain();
  failpoint("recovery.audit.copied");
  return copied;
}

/// Answers that were stored just before a crash kept their row from referring to them.
Status DurableStore::sweep_answers(const std::vector<Reader::Unfinished>& unfinished) {
  for (const Reader::Unfinished& request : unfinished) {
    if (request.state == State::kQueued) continue;  // swept before it was queued again; in a copy it is doomed
    if (auto dropped = content_->drop_artifacts(request.fence.request_id); !dropped) return dropped;
  }
  return {};
}

Status DurableStore::abandon_all(const std::vector<Reader::Unfinished>& unfinished, const InFlight::Token& token) {
  std::vector<const Reader::Unfinished*> started;
  for (const Reader::Unfinished& request : unfinished) {
    if (request.state != State::kQueued) started.push_back(&request);
  }
  if (started.empty()) return {};
  Collector abandoned(started.size());
  for (const Reader::Unfinished* request : started) {
    // A gap also in one that was only assigned: that it runs waits a moment before it is written down, as its records
    // do.
    give_up(
        request->fence, "the server ended while it ran", State::kAssigned,
        [&abandoned](Status status) { abandoned.report(std::move(status)); }, token);
  }
  return abandoned.wait();
}

Status DurableStore::reject_too_large(const std::vector<Reader::Unfinished>& unfinished, const InFlight::Token& token) {
  std::vector<const Reader::Unfinished*> too_large;
  for (const Reader::Unfinished& request : unfinished) {
    if (request.gpu_count > gpu_count_max_) too_large.push_back(&request);
  }
  if (too_large.empty()) return {};
  Collector rejected(too_large.size());
  for (const Reader::Unfinished* request : too_large) {
    const Error error{ErrorKind::kEnvironment,
                      fmt::format("the program wants {} GPUs, and since its server was started again that has {}",
                                  request->gpu_count, gpu_count_max_)};
    reject(
        Ending::From::kQueue, request->fence.request_id,
        completion_with_error(request->fence.request_id, State::kRejected, error, error.message),
        [&rejected](Status status) {
          // One whose last attempt was lost has ended as interrupted.
          const bool has_ended = !status && status.error().kind == ErrorKind::kConflict;
          rejected.report(has_ended ? Status() : std::move(status));
        },
        token);
  }
  return rejected.wait();
}

Counts DurableStore::counts() const { return {.queued = queued_, .in_progress = in_progress_}; }

}  // namespace kcoral::store
