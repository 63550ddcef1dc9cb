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

}  // namespace

Result<Admission::Kind> admission_of_known_id(const Submission& submission, std::string_view owner,
                                              const Digest& program_sha256) {
  if (owner != submission.owner || program_sha256 != submission.program_sha256) {
    return fail(ErrorKind::kConflict, "request id {} is taken by a different request; use a fresh id",
                submission.request_id.str());
  }
  return Admission::Kind::kAttached;
}

Result<std::unique_ptr<RequestTable>> RequestTable::create(Database& database, Outbox& outbox) {
  std::unique_ptr<RequestTable> table(new RequestTable(outbox));
  table->database_ = &database;
  const std::pair<Statement*, const char*> statements[] = {
      {&table->find_,
       "SELECT seq, state, attempt, max_attempts, audit_next, audit_us FROM requests WHERE request_id = ?"},
      {&table->find_existing_, "SELECT owner, program_sha256 FROM requests WHERE request_id = ?"},
      {&table->insert_,
       "INSERT INTO requests (request_id, owner, client, peer, state, priority, synchronous, labels, timeout_ms,"
       " output_limit_bytes, gpu_count, max_attempts, submitted_us, queued_us, program_sha256, program_bytes,"
       " audit_next, audit_us) VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
      {&table->insert_program_, "INSERT INTO programs (seq, codec, text) VALUES (?, ?, ?)"},
      {&table->insert_blob_, "INSERT INTO request_blobs (seq, position, digest) VALUES (?, ?, ?)"},
      {&table->find_claimable_,
       "SELECT seq, request_id, attempt, gpu_count, timeout_ms, output_limit_bytes, queued_us,"
       " program_bytes, audit_next, audit_us, priority FROM requests WHERE state = 0"
       " AND (gpu_count > 1) = ? ORDER BY priority DESC, seq LIMIT 1"},
      {&table->assign_,
       "UPDATE requests SET state = 1, attempt = ?, executor = ?, started_us = ?, audit_next = ?, audit_us = ?"
       " WHERE seq = ?"},
      {&table->unassign_,
       "UPDATE requests SET state = 0, attempt = attempt - 1, executor = '', started_us = NULL, audit_next = ?,"
       " audit_us = ? WHERE seq = ?"},
      {&table->run_, "UPDATE requests SET state = 2, pid = ?, audit_next = ?, audit_us = ? WHERE seq = ?"},
      {&table->audit_, "UPDATE requests SET audit_next = ?, audit_us = ? WHERE seq = ?"},
      {&table->finish_,
       "UPDATE requests SET state = ?, finished_us = ?, error_kind = ?, error_message = ?, queue_ms = ?,"
       " elapsed_ms = ?, lease_wait_ms = ?, lease_held_ms = ?, results_summary = ?, answer_id = ?, audit_next = ?,"
       " audit_us = ? WHERE seq = ?"},
      {&table->insert_answer_, "INSERT INTO answers (seq, header, content) VALUES (?, ?, ?)"},
      {&table->requeue_,
       "UPDATE requests SET state = 0, executor = '', pid = NULL, started_us = NULL, queued_us = ?, audit_next = ?,"
       " audit_us = ? WHERE seq = ?"},
  };
  for (const auto& [statement, sql] : statements) {
    auto prepared = database.prepare(sql);
    if (!prepared) return fail(prepared.error());
    *statement = std::move(*prepared);
  }
  return table;
}

Result<RequestTable::Row> RequestTable::load(const Uuid& request_id) {
  Cursor cursor = find_.query(request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(ErrorKind::kNotFound, "request {} is not known", request_id.str());
  return Row{.seq = cursor.integer(0),
             .state = static_cast<State>(cursor.integer(1)),
             .attempt = static_cast<int>(cursor.integer(2)),
             .max_attempts = static_cast<int>(cursor.integer(3)),
             .audit = {.next_seq = static_cast<uint64_t>(cursor.integer(4)), .last_us = cursor.integer(5)}};
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

Result<std::optional<Admission::Kind>> RequestTable::existing(const Submission& submission) {
  Cursor cursor = find_existing_.query(submission.request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return std::optional<Admission::Kind>();
  auto kind = admission_of_known_id(submission, cursor.text(0), cursor.digest(1));
  if (!kind) return fail(kind.error());
  return std::optional<Admission::Kind>(*kind);
}

Result<Admission::Kind> RequestTable::admit(const Submission& submission, const EncodedText& program,
                                            uint64_t blob_bytes, WallTime now) {
  auto known = existing(submission);
  if (!known) return fail(known.error());
  if (*known) return **known;
  AuditPosition audit;
  const AuditRecord records[] = {{now, audit_events::admitted(submission, blob_bytes)}, {now, audit_events::queued()}};
  if (auto appended = outbox_.append(submission.request_id, audit, records); !appended) return fail(appended.error());
  if (auto inserted = insert(submission, program, now, audit); !inserted) return fail(inserted.error());
  return Admission::Kind::kAdmitted;
}

Status RequestTable::insert(const Submission& submission, const EncodedText& program, WallTime now,
                            const AuditPosition& audit) {
  const schema::Options& options = submission.program.options;
  // A deadline below a millisecond is one all the same.
  const auto timeout_ms = std::max<int64_t>(1, std::llround(options.timeout_seconds * 1000));
  auto inserted = insert_.execute(submission.request_id, submission.owner, submission.client, submission.peer,
                                  options.priority, submission.synchronous, labels_json(options.labels), timeout_ms,
                                  options.output_limit_bytes, options.gpu_count, submission.max_attempts,
                                  microseconds(now), microseconds(now), submission.program_sha256,
                                  static_cast<uint64_t>(submission.program_text.size()), audit.next_seq, audit.last_us);
  if (!inserted) return inserted;
  const int64_t seq = database_->last_insert_rowid();
  inserted = insert_program_.execute(seq, static_cast<int>(program.codec), BlobValue{program.bytes});
  if (!inserted) return inserted;
  int position = 0;
  for (const Digest& digest : submission.program.blobs) {
    inserted = insert_blob_.execute(seq, position++, digest);
    if (!inserted) return inserted;
  }
  return {};
}

Result<std::optional<RequestTable::Claimed>> RequestTable::claim_next(const ExecutorRef& executor,
                                                                      bool for_several_gpus, WallTime now) {
  Claimed claimed;
  AuditPosition audit;
  {
    Cursor cursor = find_claimable_.query(static_cast<int>(for_several_gpus));
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return std::optional<Claimed>();
    claimed.seq = cursor.integer(0);
    claimed.claim.fence = {cursor.uuid(1), static_cast<int>(cursor.integer(2)) + 1};
    claimed.claim.gpu_count = static_cast<int>(cursor.integer(3));
    claimed.claim.timeout = std::chrono::milliseconds(cursor.integer(4));
    claimed.claim.output_limit_bytes = static_cast<uint64_t>(cursor.integer(5));
    // The wall clock is all that survives a restart; set back, it must not make the wait negative.
    claimed.claim.queued = std::chrono::microseconds(std::max<int64_t>(0, microseconds(now) - cursor.integer(6)));
    claimed.program_bytes = static_cast<uint64_t>(cursor.integer(7));
    audit = {.next_seq = static_cast<uint64_t>(cursor.integer(8)), .last_us = cursor.integer(9)};
    claimed.claim.priority = static_cast<int>(cursor.integer(10));
  }
  const Fence& fence = claimed.claim.fence;
  const AuditRecord record{now, audit_events::assigned(executor, fence.attempt)};
  if (auto appended = outbox_.append(fence.request_id, audit, {&record, 1}); !appended) return fail(appended.error());
  auto assigned =
      assign_.execute(fence.attempt, executor.name, microseconds(now), audit.next_seq, audit.last_us, claimed.seq);
  if (!assigned) return fail(assigned.error());
  return std::optional<Claimed>(std::move(claimed));
}

Status RequestTable::unclaim(const Fence& fence, const std::string& reason, WallTime now) {
  auto row = load_fenced(fence, State::kQueued);
  if (!row) return fail(row.error());
  KCORAL_CHECK(row->state == State::kAssigned);
  const AuditRecord record{now, audit_events::requeued(reason)};
  if (auto appended = outbox_.append(fence.request_id, row->audit, {&record, 1}); !appended) return appended;
  return unassign_.execute(row->audit.next_seq, row->audit.last_us, row->seq);
}

Status RequestTable::mark_running(const Fence& fence, int pid, WallTime now) {
  auto row = load_fenced(fence, State::kRunning);
  if (!row) return fail(row.error());
  const AuditRecord record{now, audit_events::running(pid, fence.attempt)};
  if (auto appended = outbox_.append(fence.request_id, row->audit, {&record, 1}); !appended) return appended;
  return run_.execute(pid, row->audit.next_seq, row->audit.last_us, row->seq);
}

Status RequestTable::append_audit(const Fence& fence, const std::vector<AuditRecord>& records) {
  auto row = load_fenced(fence, std::nullopt);
  if (!row) return fail(row.error());
  if (auto appended = outbox_.append(fence.request_id, row->audit, records); !appended) return appended;
  return audit_.execute(row->audit.next_seq, row->audit.last_us, row->seq);
}

Status RequestTable::finish(const Fence& fence, const Completion& completion, const KeptAnswer& answer, WallTime now) {
  auto row = load_fenced(fence, completion.state);
  if (!row) return fail(row.error());
  // A request that was queued again still bears the number of the attempt that was given up.
  if (row->state == State::kQueued) {
    return fail(ErrorKind::kConflict, "attempt {} of request {} was given up", fence.attempt, fence.request_id.str());
  }
  return finish_row(fence.request_id, *row, completion, answer, now);
}

Status RequestTable::finish_row(const Uuid& request_id, Row& row, const Completion& completion,
                                const KeptAnswer& answer, WallTime now) {
  std::vector<AuditRecord> records = completion.records;
  records.push_back({now, audit_events::finished(completion.state, completion.reason)});
  if (auto appended = outbox_.append(request_id, row.audit, records); !appended) return appended;
  const auto* small = std::get_if<SmallAnswer>(&answer);
  if (small != nullptr) {
    auto inserted = insert_answer_.execute(row.seq, small->header, BlobValue{small->content});
    if (!inserted) return inserted;
  }
  const schema::OutcomeTimes& times = completion.times;
  return finish_.execute(
      static_cast<int>(completion.state), microseconds(now), completion.error_kind, completion.error_message,
      times.queue_ms, times.elapsed_ms, times.lease_wait_ms, times.lease_held_ms, completion.results_summary,
      small != nullptr ? 0 : std::get<ContentId>(answer), row.audit.next_seq, row.audit.last_us, row.seq);
}

Status RequestTable::reject(const Uuid& request_id, const Completion& completion, const KeptAnswer& answer,
                            WallTime now) {
  auto row = load(request_id);
  if (!row) return fail(row.error());
  if (!schema::may_move(row->state, State::kRejected)) {
    return fail(ErrorKind::kConflict, "request {} is queued no longer", request_id.str());
  }
  return finish_row(request_id, *row, completion, answer, now);
}

Result<RequestTable::Lost> RequestTable::requeue(const Fence& fence, const std::string& reason, State gap_from,
                                                 WallTime now) {
  auto row = load_fenced(fence, State::kQueued);
  if (!row) return fail(row.error());
  std::vector<AuditRecord> records;
  if (row->state >= gap_from) records.push_back({now, audit_events::gap(reason)});
  if (row->attempt >= row->max_attempts) return Lost{.is_queued = false, .records = std::move(records)};
  records.push_back({now, audit_events::requeued(reason)});
  if (auto appended = outbox_.append(fence.request_id, row->audit, records); !appended) return fail(appended.error());
  auto moved = requeue_.execute(microseconds(now), row->audit.next_seq, row->audit.last_us, row->seq);
  if (!moved) return fail(moved.error());
  return Lost{.is_queued = true, .records = {}};
}

}  // namespace kcoral::store
