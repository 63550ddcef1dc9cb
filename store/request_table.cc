#include "store/request_table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "store/audit_events.h"

namespace kcoral::store {
namespace {

using schema::State;

int64_t microseconds(WallTime time) { return time.time_since_epoch().count(); }

std::string labels_json(const std::map<std::string, std::string>& labels) {
  return nlohmann::json(labels).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<std::string> json_of(const std::optional<std::vector<int>>& gpu_ids) {
  if (!gpu_ids) return std::nullopt;
  return nlohmann::json(*gpu_ids).dump();
}

}  // namespace

Result<Admission::Kind> admission_of_known_id(const Submission& submission, std::string_view owner,
                                              const Digest& program_sha256) {
  if (owner != submission.owner || program_sha256 != submission.program_sha256) {
    return fail(ErrorKind::kConflict, "request id {} is taken by a different request; use a fresh id",
                submission.request_id.str());
  }
  return Admission::Kind::kAttached;
}

uint64_t kept_bytes(const Ended& ended) {
  const auto* small = std::get_if<SmallAnswer>(&ended.answer);
  uint64_t bytes =
      small != nullptr ? small->header.size() + small->content.size() : ended.completion.answer->body_bytes();
  for (const auto& [stream, text] : ended.captured) bytes += text.size();
  return bytes;
}

Ended cancelled_end(const Uuid& request_id, std::string reason) {
  Ended ended;
  const Error error{ErrorKind::kCancelled, reason};
  ended.completion = completion_with_error(request_id, State::kCancelled, error, std::move(reason));
  ended.answer = encode_if_small(*ended.completion.answer).value();
  return ended;
}

Result<std::unique_ptr<RequestTable>> RequestTable::create(Database& database, Outbox& outbox, FairQueue& queue,
                                                           UndoLog& undo_log, const QueueBounds& bounds,
                                                           const Clock& clock) {
  std::unique_ptr<RequestTable> table(new RequestTable(database, outbox, queue, undo_log, bounds, clock));
  if (auto prepared = table->prepare(); !prepared) return fail(prepared.error());
  if (auto filled = table->fill_queue(); !filled) return fail(filled.error());
  return table;
}

Status RequestTable::prepare() {
  const std::pair<Statement*, const char*> statements[] = {
      {&find_,
       "SELECT seq, state, attempt, max_attempts, audit_next, audit_us, client, priority, gpu_count > 1, synchronous,"
       " cancel_requested, submitted_us, queued_us FROM requests WHERE request_id = ?"},
      {&find_existing_, "SELECT owner, program_sha256, synchronous FROM requests WHERE request_id = ?"},
      {&insert_,
       "INSERT INTO requests (request_id, owner, client, peer, state, priority, synchronous, labels, timeout_ms,"
       " output_limit_bytes, gpu_count, max_attempts, submitted_us, queued_us, program_sha256, program_bytes,"
       " audit_next, audit_us) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
      {&insert_program_, "INSERT INTO programs (seq, codec, text) VALUES (?, ?, ?)"},
      {&insert_blob_, "INSERT INTO request_blobs (seq, position, digest) VALUES (?, ?, ?)"},
      {&insert_label_, "INSERT INTO request_labels (name, value, submitted_us, seq) VALUES (?, ?, ?, ?)"},
      {&detach_, "UPDATE requests SET synchronous = 0 WHERE request_id = ?"},
      {&find_queued_,
       "SELECT request_id, attempt, gpu_count, timeout_ms, output_limit_bytes, program_bytes, audit_next, audit_us,"
       " state FROM requests WHERE seq = ?"},
      {&assign_,
       "UPDATE requests SET state = 1, attempt = ?, executor = ?, started_us = ?, audit_next = ?, audit_us = ?"
       " WHERE seq = ?"},
      {&unassign_,
       "UPDATE requests SET state = 0, attempt = attempt - 1, executor = '', started_us = NULL, audit_next = ?,"
       " audit_us = ? WHERE seq = ?"},
      {&note_,
       "UPDATE requests SET state = ?, pid = coalesce(?, pid), gpu_ids = coalesce(?, gpu_ids), audit_next = ?,"
       " audit_us = ? WHERE seq = ?"},
      {&finish_,
       "UPDATE requests SET state = ?, pid = coalesce(?, pid), gpu_ids = coalesce(?, gpu_ids), finished_us = ?,"
       " error_kind = ?, error_message = ?, queue_ms = ?,"
       " elapsed_ms = ?, lease_wait_ms = ?, lease_held_ms = ?, results_summary = ?, answer_id = ?, kept_bytes = ?,"
       " audit_next = ?, audit_us = ? WHERE seq = ?"},
      {&insert_answer_, "INSERT INTO answers (seq, header, content) VALUES (?, ?, ?)"},
      {&insert_output_, "INSERT INTO outputs (seq, stream, codec, bytes, text) VALUES (?, ?, ?, ?, ?)"},
      {&requeue_,
       "UPDATE requests SET state = 0, executor = '', gpu_ids = '[]', pid = NULL, started_us = NULL, queued_us = ?,"
       " audit_next = ?, audit_us = ? WHERE seq = ?"},
      {&request_cancel_, "UPDATE requests SET cancel_requested = 1, audit_next = ?, audit_us = ? WHERE seq = ?"},
  };
  for (const auto& [statement, sql] : statements) {
    auto prepared = database_.prepare(sql);
    if (!prepared) return fail(prepared.error());
    *statement = std::move(*prepared);
  }
  return {};
}

Status RequestTable::fill_queue() {
  auto queued = database_.prepare(
      "SELECT seq, client, priority, gpu_count > 1, submitted_us, queued_us FROM requests WHERE state = 0"
      " ORDER BY submitted_us, seq");
  if (!queued) return fail(queued.error());
  Cursor cursor = queued->query();
  for (;;) {
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return {};
    queue_.push({cursor.integer(0), std::string(cursor.text(1)), static_cast<int>(cursor.integer(2)),
                 cursor.integer(3) != 0, steady_time_of(cursor.integer(4)), steady_time_of(cursor.integer(5))});
  }
}

/// The wall clock is all that survives a restart; what it says of the future, having been set back, is now.
SteadyTime RequestTable::steady_time_of(int64_t wall_us) const {
  return clock_.now() - std::chrono::microseconds(std::max<int64_t>(0, microseconds(clock_.wall_now()) - wall_us));
}

void RequestTable::push(const FairQueue::Item& item) {
  queue_.push(item);
  undo_log_.add([this, item] { (void)queue_.remove(item); });
}

FairQueue::Item RequestTable::remove(const FairQueue::Item& item) {
  FairQueue::Item removed = queue_.remove(item);
  undo_log_.add([this, removed] { queue_.push(removed); });
  return removed;
}

Result<RequestTable::Row> RequestTable::load(const Uuid& request_id) {
  Cursor cursor = find_.query(request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(ErrorKind::kNotFound, "request {} is not known", request_id.str());
  Row row;
  row.request_id = request_id;
  row.seq = cursor.integer(0);
  row.state = static_cast<State>(cursor.integer(1));
  row.attempt = static_cast<int>(cursor.integer(2));
  row.max_attempts = static_cast<int>(cursor.integer(3));
  row.audit = {.next_seq = static_cast<uint64_t>(cursor.integer(4)), .last_us = cursor.integer(5)};
  row.item = {row.seq,
              std::string(cursor.text(6)),
              static_cast<int>(cursor.integer(7)),
              cursor.integer(8) != 0,
              steady_time_of(cursor.integer(11)),
              steady_time_of(cursor.integer(12))};
  row.synchronous = cursor.integer(9) != 0;
  row.cancel_requested = cursor.integer(10) != 0;
  return row;
}

Result<RequestTable::Row> RequestTable::load_fenced(const Fence& fence, std::optional<State> to) {
  auto row = load(fence.request_id);
  if (!row) return row;
  if (row->attempt != fence.attempt) {
    return fail(ErrorKind::kConflict, "attempt {} of request {} is over: {} attempts were started", fence.attempt,
                fence.request_id.str(), row->attempt);
  }
  if (to && !schema::may_move(row->state, *to)) {
    return fail(ErrorKind::kConflict, "request {} is {} and cannot become {}", fence.request_id.str(),
                schema::wire_name(row->state), schema::wire_name(*to));
  }
  return row;
}

Status RequestTable::record(Row& row, const std::vector<AuditRecord>& records) {
  return outbox_.append(row.request_id, row.audit, records);
}

// --- admission ---

Result<std::optional<Admission::Kind>> RequestTable::existing(const Submission& submission) {
  bool is_synchronous = false;
  {
    Cursor cursor = find_existing_.query(submission.request_id);
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return std::optional<Admission::Kind>();
    auto kind = admission_of_known_id(submission, cursor.text(0), cursor.digest(1));
    if (!kind) return fail(kind.error());
    is_synchronous = cursor.integer(2) != 0;
  }
  if (is_synchronous && !submission.synchronous) {
    if (auto detached = detach_.execute(submission.request_id); !detached) return fail(detached.error());
  }
  return std::optional<Admission::Kind>(Admission::Kind::kAttached);
}

Status RequestTable::check_room(const Submission& submission) const {
  if (is_full()) {
    return fail(ErrorKind::kBusy, "the queue is full: {} requests wait (--max-queued-requests)", queue_.size());
  }
  if (queue_.size_of(submission.client) >= bounds_.client_requests_max) {
    return fail(ErrorKind::kRateLimited,
                "{} requests of this client wait, which is as many as one may have (--max-queued-per-client)",
                queue_.size_of(submission.client));
  }
  return {};
}

Result<RequestTable::Admitted> RequestTable::admit(const Submission& submission, const EncodedText& program,
                                                   uint64_t blob_bytes, WallTime now) {
  auto known = existing(submission);
  if (!known) return fail(known.error());
  if (*known) return Admitted{**known, {}};
  if (auto room = check_room(submission); !room) return fail(room.error());
  AuditPosition audit;
  const AuditRecord records[] = {{now, audit_events::admitted(submission, blob_bytes)}, {now, audit_events::queued()}};
  if (auto appended = outbox_.append(submission.request_id, audit, records); !appended) return fail(appended.error());
  auto inserted = insert(submission, program, now, audit);
  if (!inserted) return fail(inserted.error());
  return Admitted{Admission::Kind::kAdmitted, std::move(*inserted)};
}

Result<FairQueue::Item> RequestTable::insert(const Submission& submission, const EncodedText& program, WallTime now,
                                             const AuditPosition& audit) {
  const schema::Options& options = submission.program.options;
  // A deadline below a millisecond is one all the same.
  const auto timeout_ms = std::max<int64_t>(1, std::llround(options.timeout_seconds * 1000));
  auto inserted = insert_.execute(submission.request_id, submission.owner, submission.client, submission.peer,
                                  options.priority, submission.synchronous, labels_json(options.labels), timeout_ms,
                                  options.output_limit_bytes, options.gpu_count, submission.max_attempts,
                                  microseconds(now), microseconds(now), submission.program_sha256,
                                  static_cast<uint64_t>(submission.program_text.size()), audit.next_seq, audit.last_us);
  if (!inserted) return fail(inserted.error());
  const int64_t seq = database_.last_insert_rowid();
  inserted = insert_program_.execute(seq, static_cast<int>(program.codec), BlobValue{program.bytes});
  if (!inserted) return fail(inserted.error());
  int position = 0;
  for (const Digest& digest : submission.program.blobs) {
    inserted = insert_blob_.execute(seq, position++, digest);
    if (!inserted) return fail(inserted.error());
  }
  for (const auto& [name, value] : options.labels) {
    inserted = insert_label_.execute(name, value, microseconds(now), seq);
    if (!inserted) return fail(inserted.error());
  }
  FairQueue::Item item{seq, submission.client, options.priority, options.gpu_count > 1, clock_.now(), clock_.now()};
  push(item);
  return item;
}

// --- runs ---

Result<std::optional<RequestTable::Claimed>> RequestTable::claim_next(const ExecutorRef& executor,
                                                                      bool for_several_gpus, WallTime now) {
  const auto item = queue_.next(for_several_gpus);
  if (!item) return std::optional<Claimed>();
  Claimed claimed;
  AuditPosition audit;
  {
    Cursor cursor = find_queued_.query(item->seq);
    auto found = cursor.next();
    if (!found) return fail(found.error());
    KCORAL_CHECK(*found && static_cast<State>(cursor.integer(8)) == State::kQueued);
    claimed.seq = item->seq;
    claimed.claim.fence = {cursor.uuid(0), static_cast<int>(cursor.integer(1)) + 1};
    claimed.claim.gpu_count = static_cast<int>(cursor.integer(2));
    claimed.claim.timeout = std::chrono::milliseconds(cursor.integer(3));
    claimed.claim.output_limit_bytes = static_cast<uint64_t>(cursor.integer(4));
    claimed.claim.queued = std::chrono::duration_cast<std::chrono::microseconds>(clock_.now() - item->queued);
    claimed.program_bytes = static_cast<uint64_t>(cursor.integer(5));
    audit = {.next_seq = static_cast<uint64_t>(cursor.integer(6)), .last_us = cursor.integer(7)};
    claimed.claim.priority = item->priority;
  }
  const Fence& fence = claimed.claim.fence;
  const AuditRecord record{now, audit_events::assigned(executor, fence.attempt)};
  if (auto appended = outbox_.append(fence.request_id, audit, {&record, 1}); !appended) return fail(appended.error());
  auto assigned =
      assign_.execute(fence.attempt, executor.name, audit.last_us, audit.next_seq, audit.last_us, claimed.seq);
  if (!assigned) return fail(assigned.error());
  queue_.start(fence.request_id, *item, clock_.now());
  undo_log_.add([this, id = fence.request_id, item = *item] { queue_.undo_start(id, item); });
  return std::optional<Claimed>(std::move(claimed));
}

Status RequestTable::note(const Fence& fence, const RunNotes& notes) {
  auto row = load_fenced(fence, notes.pid ? std::optional(State::kRunning) : std::nullopt);
  if (!row) return fail(row.error());
  if (auto recorded = record(*row, notes.records); !recorded) return recorded;
  const State state = notes.pid ? State::kRunning : row->state;
  return note_.execute(static_cast<int>(state), notes.pid, json_of(notes.gpu_ids), row->audit.next_seq,
                       row->audit.last_us, row->seq);
}

// --- runs that were given up ---

Result<RequestTable::GivenUp> RequestTable::unclaim(const Fence& fence, const std::string& reason, Ended& if_cancelled,
                                                    WallTime now) {
  auto row = load_fenced(fence, State::kQueued);
  if (!row) return fail(row.error());
  KCORAL_CHECK(row->state == State::kAssigned);
  if (row->cancel_requested) {
    if (auto finished = finish_row(*row, {}, if_cancelled, now); !finished) return fail(finished.error());
    return GivenUp::kCancelled;
  }
  if (auto recorded = record(*row, {{now, audit_events::requeued(reason)}}); !recorded) return fail(recorded.error());
  auto moved = unassign_.execute(row->audit.next_seq, row->audit.last_us, row->seq);
  if (!moved) return fail(moved.error());
  if (const auto run = queue_.run_of(fence.request_id)) row->item = run->item;
  queue_.ended(fence.request_id, std::chrono::microseconds(0));
  push(row->item);
  return GivenUp::kQueued;
}

Result<RequestTable::GivenUp> RequestTable::requeue(const Fence& fence, const std::string& reason, State gap_from,
                                                    Ended& if_cancelled, std::vector<AuditRecord>& records,
                                                    WallTime now) {
  auto row = load_fenced(fence, State::kQueued);
  if (!row) return fail(row.error());
  records.clear();
  if (row->state >= gap_from) records.push_back({now, audit_events::gap(reason)});
  if (row->cancel_requested) {
    if_cancelled.completion.records = records;
    if (auto finished = finish_row(*row, {}, if_cancelled, now); !finished) return fail(finished.error());
    return GivenUp::kCancelled;
  }
  if (row->attempt >= row->max_attempts) return GivenUp::kNoAttemptLeft;
  records.push_back({now, audit_events::requeued(reason)});
  if (auto recorded = record(*row, records); !recorded) return fail(recorded.error());
  auto moved = requeue_.execute(row->audit.last_us, row->audit.next_seq, row->audit.last_us, row->seq);
  if (!moved) return fail(moved.error());
  // The queue does not know what an earlier server had started.
  if (const auto run = queue_.run_of(fence.request_id)) {
    row->item = run->item;
    const auto took = std::chrono::duration_cast<std::chrono::microseconds>(clock_.now() - run->begun);
    queue_.ended(fence.request_id, took);
  }
  row->item.queued = clock_.now();
  push(row->item);
  return GivenUp::kQueued;
}

// --- ends ---

Status RequestTable::finish(const Fence& fence, const RunNotes& notes, Ended& ended, WallTime now) {
  auto row = load_fenced(fence, ended.completion.state);
  if (!row) return fail(row.error());
  // A request that was queued again still bears the number of the attempt that was given up.
  if (row->state == State::kQueued) {
    return fail(ErrorKind::kConflict, "attempt {} of request {} was given up", fence.attempt, fence.request_id.str());
  }
  return finish_row(*row, notes, ended, now);
}

Status RequestTable::reject(const Uuid& request_id, Ended& ended, bool only_synchronous, WallTime now) {
  auto row = load(request_id);
  if (!row) return fail(row.error());
  if (!schema::may_move(row->state, State::kRejected)) {
    return fail(ErrorKind::kConflict, "request {} is queued no longer", request_id.str());
  }
  if (only_synchronous && !row->synchronous) {
    return fail(ErrorKind::kConflict, "request {} is polled and does not expire", request_id.str());
  }
  return finish_row(*row, {}, ended, now);
}

Result<RequestTable::Cancelled> RequestTable::cancel(const Uuid& request_id, CancelBy by, Ended& ended, WallTime now) {
  auto row = load(request_id);
  if (!row) return fail(row.error());
  if (row->state == State::kCancelled) return Cancelled{};
  if (schema::is_terminal(row->state)) {
    return fail(ErrorKind::kConflict, "request {} has ended before: it is {}", request_id.str(),
                schema::wire_name(row->state));
  }
  if (by == CancelBy::kNobody && !row->synchronous) return Cancelled{row->state, std::nullopt, false};
  if (!row->cancel_requested) {
    if (auto recorded = record(*row, {{now, audit_events::cancel_requested(by)}}); !recorded) {
      return fail(recorded.error());
    }
    auto marked = request_cancel_.execute(row->audit.next_seq, row->audit.last_us, row->seq);
    if (!marked) return fail(marked.error());
  }
  if (row->state != State::kQueued) {
    return Cancelled{row->state, Fence{request_id, row->attempt}, false};
  }
  if (auto finished = finish_row(*row, {}, ended, now); !finished) return fail(finished.error());
  return Cancelled{State::kCancelled, std::nullopt, true};
}

Status RequestTable::finish_row(Row& row, const RunNotes& notes, Ended& ended, WallTime now) {
  ended.client = row.item.client;
  const Completion& completion = ended.completion;
  std::vector<AuditRecord> records = notes.records;
  records.insert(records.end(), completion.records.begin(), completion.records.end());
  records.push_back({now, audit_events::finished(completion.state, completion.reason)});
  if (auto recorded = record(row, records); !recorded) return recorded;
  const auto* small = std::get_if<SmallAnswer>(&ended.answer);
  if (small != nullptr) {
    auto inserted = insert_answer_.execute(row.seq, small->header, BlobValue{small->content});
    if (!inserted) return inserted;
  }
  for (const auto& [stream, text] : ended.captured) {
    const EncodedText encoded = encode_text(text);
    auto inserted = insert_output_.execute(row.seq, static_cast<int>(stream), static_cast<int>(encoded.codec),
                                           static_cast<uint64_t>(text.size()), BlobValue{encoded.bytes});
    if (!inserted) return inserted;
  }
  schema::OutcomeTimes times = completion.times;
  if (row.state == State::kQueued) {
    const std::chrono::duration<double, std::milli> queued = clock_.now() - remove(row.item).queued;
    times.queue_ms = queued.count();
  }
  auto finished = finish_.execute(static_cast<int>(completion.state), notes.pid, json_of(notes.gpu_ids),
                                  row.audit.last_us, completion.error_kind, completion.error_message, times.queue_ms,
                                  times.elapsed_ms, times.lease_wait_ms, times.lease_held_ms,
                                  completion.results_summary, small != nullptr ? 0 : std::get<ContentId>(ended.answer),
                                  kept_bytes(ended), row.audit.next_seq, row.audit.last_us, row.seq);
  if (!finished) return finished;
  if (row.state != State::kQueued) {
    queue_.ended(row.request_id, std::chrono::microseconds(std::llround(times.elapsed_ms * 1000)));
  }
  return {};
}

}  // namespace kcoral::store
