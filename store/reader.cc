#include "store/reader.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "store/program_text.h"

namespace kcoral::store {
namespace {

using schema::State;

// More are opened when more threads look up at once; a connection costs about 2 MiB of page cache once it is busy.
constexpr size_t kIdleReadersMax = 8;

WallTime wall_time(int64_t us) { return WallTime(std::chrono::microseconds(us)); }

Error unknown(const Uuid& request_id) {
  return {ErrorKind::kNotFound, fmt::format("request {} is not known", request_id.str())};
}

constexpr std::string_view kStatusColumns =
    "request_id, owner, client, state, priority, attempt, max_attempts, labels, submitted_us, started_us, finished_us,"
    " executor, gpu_ids, queue_ms, elapsed_ms, lease_wait_ms, lease_held_ms, program_sha256, error_kind, error_message,"
    " results_summary, cancel_requested, seq";

/// A row of the columns above.
RequestStatus status_from(const Cursor& cursor) {
  RequestStatus status;
  status.request_id = cursor.uuid(0);
  status.owner = cursor.text(1);
  status.client = cursor.text(2);
  status.state = static_cast<State>(cursor.integer(3));
  status.priority = static_cast<int>(cursor.integer(4));
  status.attempt = static_cast<int>(cursor.integer(5));
  status.max_attempts = static_cast<int>(cursor.integer(6));
  const auto labels = nlohmann::json::parse(cursor.text(7), nullptr, false);
  for (const auto& [name, label] : labels.items()) status.labels[name] = label.get<std::string>();
  status.submitted_at = wall_time(cursor.integer(8));
  if (!cursor.is_null(9)) status.started_at = wall_time(cursor.integer(9));
  if (!cursor.is_null(10)) status.finished_at = wall_time(cursor.integer(10));
  status.executor = cursor.text(11);
  const auto gpu_ids = nlohmann::json::parse(cursor.text(12), nullptr, false);
  for (const auto& id : gpu_ids) status.gpu_ids.push_back(id.get<int>());
  if (!cursor.is_null(13)) {
    status.times = schema::OutcomeTimes{cursor.real(13), cursor.real(14), cursor.real(15), cursor.real(16)};
  }
  status.program_sha256 = cursor.digest(17);
  status.error_kind = cursor.text(18);
  status.error_message = cursor.text(19);
  status.results_summary = cursor.text(20);
  status.cancel_requested = cursor.integer(21) != 0;
  return status;
}

}  // namespace

Result<std::unique_ptr<Reader>> Reader::open(const std::string& path) {
  auto database = Database::open(path, Database::Access::kReader);
  if (!database) return fail(database.error());
  std::unique_ptr<Reader> reader(new Reader());
  reader->database_ = std::move(*database);
  const std::pair<Statement*, std::string> statements[] = {
      {&reader->status_, fmt::format("SELECT {} FROM requests WHERE request_id = ?", kStatusColumns)},
      {&reader->standing_,
       "SELECT state, owner, program_sha256, answer_id, header, content FROM requests"
       " LEFT JOIN answers USING (seq) WHERE request_id = ?"},
      {&reader->program_, "SELECT codec, text FROM programs WHERE seq = ?"},
      {&reader->program_of_,
       "SELECT codec, text, program_bytes FROM requests JOIN programs USING (seq) WHERE request_id = ?"},
      {&reader->blobs_, "SELECT digest FROM request_blobs WHERE seq = ? ORDER BY position"},
      {&reader->outbox_after_,
       "SELECT id, request_id, first_seq, records FROM outbox WHERE id > ? ORDER BY id LIMIT ?"},
      {&reader->outbox_of_, "SELECT id, request_id, first_seq, records FROM outbox WHERE request_id = ? ORDER BY id"},
      {&reader->unfinished_,
       "SELECT request_id, attempt, state, gpu_count FROM requests WHERE state = 0 UNION ALL"
       " SELECT request_id, attempt, state, gpu_count FROM requests WHERE state IN (1, 2)"},
  };
  for (const auto& [statement, sql] : statements) {
    auto prepared = reader->database_->prepare(sql);
    if (!prepared) return fail(prepared.error());
    *statement = std::move(*prepared);
  }
  return reader;
}

Result<RequestStatus> Reader::status(const Uuid& request_id) {
  Cursor cursor = status_.query(request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(unknown(request_id));
  return status_from(cursor);
}

Result<std::optional<Reader::Standing>> Reader::standing(const Uuid& request_id) {
  Cursor cursor = standing_.query(request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return std::optional<Standing>();
  Standing standing{.state = static_cast<State>(cursor.integer(0)),
                    .owner = std::string(cursor.text(1)),
                    .program_sha256 = cursor.digest(2),
                    .answer = std::nullopt};
  if (!cursor.is_null(4)) {
    standing.answer = SmallAnswer{std::string(cursor.text(4)), std::string(cursor.blob(5))};
  } else if (!cursor.is_null(3)) {
    standing.answer = static_cast<ContentId>(cursor.integer(3));
  }
  return std::optional<Standing>(std::move(standing));
}

Result<std::string> Reader::program_text(int64_t seq, uint64_t program_bytes) {
  Cursor cursor = program_.query(seq);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(ErrorKind::kEngine, "the program is not stored");
  return decode_text(static_cast<Codec>(cursor.integer(0)), cursor.blob(1), program_bytes);
}

Result<std::string> Reader::program_text(const Uuid& request_id) {
  Cursor cursor = program_of_.query(request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(unknown(request_id));
  return decode_text(static_cast<Codec>(cursor.integer(0)), cursor.blob(1), static_cast<uint64_t>(cursor.integer(2)));
}

Result<std::vector<Digest>> Reader::blobs(int64_t seq) {
  std::vector<Digest> digests;
  Cursor cursor = blobs_.query(seq);
  for (;;) {
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return digests;
    digests.push_back(cursor.digest(0));
  }
}

Result<std::vector<Reader::OutboxRow>> Reader::outbox_rows(Cursor cursor) {
  std::vector<OutboxRow> rows;
  for (;;) {
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return rows;
    rows.push_back({.id = cursor.integer(0),
                    .request_id = cursor.uuid(1),
                    .first_seq = static_cast<uint64_t>(cursor.integer(2)),
                    .records = std::string(cursor.text(3))});
  }
}

Result<std::vector<Reader::OutboxRow>> Reader::outbox_after(int64_t id, int count_max) {
  return outbox_rows(outbox_after_.query(id, count_max));
}

Result<std::vector<Reader::OutboxRow>> Reader::outbox_of(const Uuid& request_id) {
  return outbox_rows(outbox_of_.query(request_id));
}

Result<std::vector<Reader::Unfinished>> Reader::unfinished() {
  std::vector<Unfinished> rows;
  Cursor cursor = unfinished_.query();
  for (;;) {
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return rows;
    rows.push_back({.fence = {cursor.uuid(0), static_cast<int>(cursor.integer(1))},
                    .state = static_cast<State>(cursor.integer(2)),
                    .gpu_count = static_cast<int>(cursor.integer(3))});
  }
}

Result<Readers::Lease> Readers::lease() {
  {
    const MutexLock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Reader> reader = std::move(idle_.back());
      idle_.pop_back();
      return Lease(*this, std::move(reader));
    }
  }
  auto opened = Reader::open(path_);
  if (!opened) return fail(opened.error());
  return Lease(*this, std::move(*opened));
}

void Readers::put_back(std::unique_ptr<Reader> reader) {
  const MutexLock lock(mutex_);
  if (idle_.size() < kIdleReadersMax) idle_.push_back(std::move(reader));
}

}  // namespace kcoral::store
