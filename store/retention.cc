#include "store/retention.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"

namespace kcoral::store {
namespace {

using namespace std::chrono_literals;

constexpr auto kInterval = 60s;  // between two looks at what has become too old
constexpr auto kAhead = 60s;     // of now: a stamp beyond that is of another clock; NTP moves it by less
constexpr int kCatchUp = 2;      // how fast ages grow at most, where the wall clock has gone ahead

}  // namespace

Result<std::unique_ptr<Retention>> Retention::create(const RetentionBounds& bounds, Database& database,
                                                     Readers& readers, Content& content, Clock& clock) {
  std::unique_ptr<Retention> retention(new Retention(bounds, readers, content, clock));
  if (auto prepared = retention->prepare(database); !prepared) return fail(prepared.error());
  return retention;
}

void Retention::start(Writer& writer) {
  writer_ = &writer;
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), "store-prune");
}

Status Retention::prepare(Database& database) {
  const std::pair<Statement*, const char*> statements[] = {
      {&find_, "SELECT request_id, answer_id, kept_bytes, labels, submitted_us FROM requests WHERE seq = ?"},
      {&delete_answer_, "DELETE FROM answers WHERE seq = ?"},
      {&delete_outputs_, "DELETE FROM outputs WHERE seq = ?"},
      {&mark_pruned_, "UPDATE requests SET answer_id = NULL, kept_bytes = 0 WHERE seq = ?"},
      {&doom_, "INSERT INTO doomed (request_id, answer_id, with_audit) VALUES (?, ?, ?)"},
      {&delete_request_, "DELETE FROM requests WHERE seq = ?"},
      {&delete_program_, "DELETE FROM programs WHERE seq = ?"},
      {&delete_blobs_, "DELETE FROM request_blobs WHERE seq = ?"},
      {&delete_label_, "DELETE FROM request_labels WHERE name = ? AND value = ? AND submitted_us = ? AND seq = ?"},
      {&undoom_, "DELETE FROM doomed WHERE id <= ?"},
  };
  for (const auto& [statement, sql] : statements) {
    auto prepared = database.prepare(sql);
    if (!prepared) return fail(prepared.error());
    *statement = std::move(*prepared);
  }
  auto kept = database.query_text("SELECT coalesce(sum(kept_bytes), 0) FROM requests WHERE kept_bytes > 0");
  if (!kept) return fail(kept.error());
  kept_bytes_ = std::stoull(*kept);
  return {};
}

Retention::~Retention() { close(); }

void Retention::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  wakeup_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Retention::note_kept(uint64_t bytes) {
  kept_bytes_ += bytes;
  if (!is_over_capacity()) return;
  {
    const MutexLock lock(mutex_);
    awake_ = true;
  }
  wakeup_.notify_one();
}

void Retention::run() {
  for (;;) {
    {
      const MutexLock lock(mutex_);
      const SteadyTime deadline = Clock::system().now() + kInterval;
      while (!awake_ && !closing_) {
        if (!wakeup_.wait_until(mutex_, deadline)) break;
      }
      if (closing_) return;
      awake_ = false;
    }
    if (auto pruned = prune(); !pruned) spdlog::warn("old requests are not pruned: {}", pruned.error().message);
  }
}

Status Retention::prune() {
  const MutexLock pruning(pruning_mutex_);
  for (;;) {
    auto more = step();
    if (!more) return fail(more.error());
    if (!*more) return {};
    const MutexLock lock(mutex_);
    if (closing_) return {};
  }
}

Result<bool> Retention::step() {
  auto removed = remove_doomed();
  if (!removed || *removed) return removed;
  auto requests = due_requests();
  if (!requests) return fail(requests.error());
  auto answers = requests->empty() ? due_answers() : Result<std::vector<int64_t>>();
  if (!answers) return fail(answers.error());
  if (requests->empty() && answers->empty()) return false;
  auto committed = commit([&] {
    return requests->empty() ? for_each(*answers, &Retention::prune_answer)
                             : for_each(*requests, &Retention::forget_request);
  });
  if (!committed) return fail(committed.error());
  answers_pruned_.add(answers->size());
  requests_forgotten_.add(requests->size());
  return true;
}

Result<std::vector<int64_t>> Retention::due_requests() {
  if (!bounds_.history) return std::vector<int64_t>();
  auto reader = readers_.lease();
  if (!reader) return fail(reader.error());
  return (*reader)->ended_before(age_now() - *bounds_.history, kStepRows);
}

WallTime Retention::age_now() {
  const SteadyTime now = clock_.now();
  const auto passed = std::chrono::duration_cast<std::chrono::microseconds>(now - std::exchange(looked_at_, now));
  age_now_ = std::min(clock_.wall_now(), age_now_ + kCatchUp * passed);
  return age_now_;
}

/// The oldest, until the rest fits.
Result<std::vector<int64_t>> Retention::due_answers() {
  std::vector<int64_t> due;
  if (!is_over_capacity()) return due;
  auto reader = readers_.lease();
  if (!reader) return fail(reader.error());
  auto kept = (*reader)->kept_longest(clock_.wall_now() + kAhead, kStepRows);
  if (!kept) return fail(kept.error());
  uint64_t excess = kept_bytes_ - *bounds_.artifact_bytes_max;
  for (const auto& [seq, bytes] : *kept) {
    due.push_back(seq);
    if (bytes >= excess) break;
    excess -= bytes;
  }
  return due;
}

/// Runs `change` in a transaction and waits for its commit; it says how many bytes are kept no longer.
Status Retention::commit(std::function<Result<uint64_t>()> change) {
  std::promise<Status> done;
  writer_->submit({.apply = [this, &change, &done]() -> Result<Writer::AfterCommit> {
                     auto freed = change();
                     if (!freed) return fail(freed.error());
                     failpoint("retention.rows.applied");
                     return Writer::AfterCommit([this, &done, freed = *freed] {
                       failpoint("retention.rows.committed");
                       kept_bytes_ -= freed;
                       done.set_value({});
                     });
                   },
                   .failed = [&done](const Error& error) { done.set_value(fail(error)); },
                   .bytes = 0});
  return done.get_future().get();
}

Result<uint64_t> Retention::for_each(const std::vector<int64_t>& rows,
                                     Result<uint64_t> (Retention::*change)(int64_t seq)) {
  uint64_t freed = 0;
  for (const int64_t seq : rows) {
    auto bytes = (this->*change)(seq);
    if (!bytes) return bytes;
    freed += *bytes;
  }
  return freed;
}

Result<uint64_t> Retention::prune_answer(int64_t seq) {
  Uuid request_id;
  ContentId answer_id = 0;
  uint64_t bytes = 0;
  {
    Cursor cursor = find_.query(seq);
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found || cursor.is_null(1)) return 0;
    request_id = cursor.uuid(0);
    answer_id = static_cast<ContentId>(cursor.integer(1));
    bytes = static_cast<uint64_t>(cursor.integer(2));
  }
  for (Statement* statement : {&delete_answer_, &delete_outputs_, &mark_pruned_}) {
    if (auto done = statement->execute(seq); !done) return fail(done.error());
  }
  if (answer_id == 0) return bytes;
  if (auto doomed = doom_.execute(request_id, answer_id, false); !doomed) return fail(doomed.error());
  return bytes;
}

Result<uint64_t> Retention::forget_request(int64_t seq) {
  auto bytes = prune_answer(seq);
  if (!bytes) return bytes;
  Uuid request_id;
  nlohmann::json labels;
  int64_t submitted_us = 0;
  {
    Cursor cursor = find_.query(seq);
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return 0;
    request_id = cursor.uuid(0);
    labels = nlohmann::json::parse(cursor.text(3), nullptr, false);
    submitted_us = cursor.integer(4);
  }
  for (const auto& [name, value] : labels.items()) {
    auto done = delete_label_.execute(name, value.get<std::string>(), submitted_us, seq);
    if (!done) return fail(done.error());
  }
  for (Statement* statement : {&delete_program_, &delete_blobs_, &delete_request_}) {
    if (auto done = statement->execute(seq); !done) return fail(done.error());
  }
  if (auto doomed = doom_.execute(request_id, 0, true); !doomed) return fail(doomed.error());
  return bytes;
}

/// True if there was something.
Result<bool> Retention::remove_doomed() {
  std::vector<Reader::Doomed> doomed;
  {
    auto reader = readers_.lease();
    if (!reader) return fail(reader.error());
    auto rows = (*reader)->doomed(kStepRows);
    if (!rows) return fail(rows.error());
    doomed = std::move(*rows);
  }
  if (doomed.empty()) return false;
  for (const Reader::Doomed& each : doomed) {
    auto dropped = each.with_audit ? content_.drop_records(each.request_id)
                                   : content_.drop_artifact(each.request_id, each.answer_id);
    if (!dropped) return fail(dropped.error());
  }
  failpoint("retention.content.dropped");
  if (auto synced = content_.sync(); !synced) return fail(synced.error());
  failpoint("retention.content.synced");
  auto committed = commit([this, last = doomed.back().id]() -> Result<uint64_t> {
    auto done = undoom_.execute(last);
    return done ? Result<uint64_t>(0) : fail(done.error());
  });
  if (!committed) return fail(committed.error());
  return true;
}

}  // namespace kcoral::store
