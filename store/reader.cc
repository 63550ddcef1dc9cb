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

template <typename Row, typename Make>
Result<std::vector<Row>> all_rows(Cursor cursor, Make make) {
  std::vector<Row> rows;
  for (;;) {
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return rows;
    rows.push_back(make(cursor));
  }
}

Error unknown(const Uuid& request_id) {
  return {ErrorKind::kNotFound, fmt::format("request {} is not known", request_id.str())};
}

constexpr std::string_view kStatusColumns =
    "request_id, owner, client, state, priority, attempt, max_attempts, labels, r.submitted_us, started_us, "
    "finished_us,"
    " executor, gpu_ids, queue_ms, elapsed_ms, lease_wait_ms, lease_held_ms, program_sha256, error_kind, error_message,"
    " results_summary, cancel_requested, r.seq, gpu_count > 1";

/// A row of the columns above.
Reader::StatusRow status_from(const Cursor& cursor) {
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
  FairQueue::Item item{cursor.integer(22), status.client, status.priority, cursor.integer(23) != 0};
  return {std::move(status), std::move(item)};
}

/// Of the columns answer_id, header and content, which begin at `column`.
std::optional<KeptAnswer> kept_answer(const Cursor& cursor, int column) {
  if (!cursor.is_null(column + 1)) {
    return SmallAnswer{std::string(cursor.text(column + 1)), std::string(cursor.blob(column + 2))};
  }
  if (!cursor.is_null(column)) return static_cast<ContentId>(cursor.integer(column));
  return std::nullopt;
}

/// Each combination of conditions reads an index that has the rows in the order of the answer.
std::string history_sql(const HistoryQuery& query) {
  // The time and number of a row stand in the label's own index, too.
  const std::string_view time = query.label ? "l.submitted_us" : "r.submitted_us";
  const std::string_view seq = query.label ? "l.seq" : "r.seq";
  std::string sql = fmt::format("SELECT {} FROM ", kStatusColumns);
  sql += query.label ? "request_labels l JOIN requests r ON r.seq = l.seq WHERE l.name = ?1" : "requests r WHERE true";
  if (query.label && query.label->second) sql += " AND l.value = ?2";
  if (query.client) sql += " AND r.client = ?3";
  if (query.since) sql += fmt::format(" AND {} >= ?4", time);
  if (query.until) sql += fmt::format(" AND {} < ?5", time);
  if (query.after) sql += fmt::format(" AND ({}, {}) < (?6, ?7)", time, seq);
  // A partial index is used where its condition stands in the query word for word.
  if (query.state) sql += fmt::format(" AND r.state = {}", static_cast<int>(*query.state));
  if (query.state && schema::is_terminal(*query.state)) sql += " AND r.state > 2";
  sql += fmt::format(" ORDER BY {} DESC, {} DESC LIMIT ?8", time, seq);
  return sql;
}

/// Binds all of them, also those that the statement does not name. Requires: `query` outlives the cursor.
Cursor bind_history(Statement& statement, const HistoryQuery& query) {
  const auto text = [](const std::optional<std::string>& value) { return value ? std::string_view(*value) : ""; };
  const auto us = [](const std::optional<WallTime>& at) { return at ? at->time_since_epoch().count() : int64_t{0}; };
  const HistoryCursor after = query.after.value_or(HistoryCursor());
  return statement.query(query.label ? std::string_view(query.label->first) : "",
                         query.label ? text(query.label->second) : "", text(query.client), us(query.since),
                         us(query.until), after.submitted_us, after.seq, static_cast<int64_t>(query.count_max) + 1);
}

}  // namespace

Result<std::unique_ptr<Reader>> Reader::open(const std::string& path) {
  auto database = Database::open(path, Database::Access::kReader);
  if (!database) return fail(database.error());
  std::unique_ptr<Reader> reader(new Reader());
  reader->database_ = std::move(*database);
  const std::pair<Statement*, std::string> statements[] = {
      {&reader->state_, "SELECT state FROM requests WHERE request_id = ?"},
      {&reader->output_,
       "SELECT state, answer_id, header, content, outputs.codec, outputs.bytes, outputs.text FROM requests"
       " LEFT JOIN answers USING (seq) LEFT JOIN outputs ON outputs.seq = requests.seq AND stream = ?"
       " WHERE request_id = ?"},
      {&reader->status_, fmt::format("SELECT {} FROM requests r WHERE request_id = ?", kStatusColumns)},
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
      {&reader->ended_before_,
       "SELECT seq FROM requests WHERE submitted_us < ? AND state > 2 AND NOT EXISTS"
       " (SELECT 1 FROM outbox WHERE outbox.request_id = requests.request_id) ORDER BY submitted_us, seq LIMIT ?"},
      {&reader->kept_longest_,
       "SELECT seq, kept_bytes FROM requests WHERE kept_bytes > 0 ORDER BY finished_us, seq LIMIT ?"},
      {&reader->kept_ahead_,
       "SELECT seq, kept_bytes FROM requests WHERE kept_bytes > 0 AND finished_us > ? ORDER BY finished_us, seq"
       " LIMIT ?"},
      {&reader->doomed_, "SELECT id, request_id, answer_id, with_audit FROM doomed ORDER BY id LIMIT ?"},
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

Result<Reader::StatusRow> Reader::status(const Uuid& request_id) {
  Cursor cursor = status_.query(request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(unknown(request_id));
  return status_from(cursor);
}

Result<State> Reader::state(const Uuid& request_id) {
  Cursor cursor = state_.query(request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(unknown(request_id));
  return static_cast<State>(cursor.integer(0));
}

Result<Reader::HistoryRows> Reader::history(const HistoryQuery& query) {
  HistoryRows page;
  auto statement = database_->prepare(history_sql(query));
  if (!statement) return fail(statement.error());
  Cursor cursor = bind_history(*statement, query);
  for (;;) {
    auto found = cursor.next();
    if (!found) return fail(found.error());
    if (!*found) return page;
    if (page.rows.size() == query.count_max) {  // there is one more
      const StatusRow& last = page.rows.back();
      page.next = HistoryCursor{last.status.submitted_at.time_since_epoch().count(), last.item.seq};
      return page;
    }
    page.rows.push_back(status_from(cursor));
  }
}

Result<Reader::OutputPlace> Reader::output(const Uuid& request_id, OutputStream stream) {
  Cursor cursor = output_.query(static_cast<int>(stream), request_id);
  auto found = cursor.next();
  if (!found) return fail(found.error());
  if (!*found) return fail(unknown(request_id));
  OutputPlace place{
      .state = static_cast<State>(cursor.integer(0)), .text = std::nullopt, .answer = kept_answer(cursor, 1)};
  if (cursor.is_null(4)) return place;
  auto text =
      decode_text(static_cast<Codec>(cursor.integer(4)), cursor.blob(6), static_cast<uint64_t>(cursor.integer(5)));
  if (!text) return fail(text.error());
  place.text = std::move(*text);
  return place;
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
  standing.answer = kept_answer(cursor, 3);
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
  return all_rows<Digest>(blobs_.query(seq), [](const Cursor& row) { return row.digest(0); });
}

Result<std::vector<Reader::OutboxRow>> Reader::outbox_rows(Cursor cursor) {
  return all_rows<OutboxRow>(std::move(cursor), [](const Cursor& row) {
    return OutboxRow{.id = row.integer(0),
                     .request_id = row.uuid(1),
                     .first_seq = static_cast<uint64_t>(row.integer(2)),
                     .records = std::string(row.text(3))};
  });
}

Result<std::vector<Reader::OutboxRow>> Reader::outbox_after(int64_t id, int count_max) {
  return outbox_rows(outbox_after_.query(id, count_max));
}

Result<std::vector<Reader::OutboxRow>> Reader::outbox_of(const Uuid& request_id) {
  return outbox_rows(outbox_of_.query(request_id));
}

Result<std::vector<int64_t>> Reader::ended_before(WallTime time, int count_max) {
  return all_rows<int64_t>(ended_before_.query(time.time_since_epoch().count(), count_max),
                           [](const Cursor& row) { return row.integer(0); });
}

Result<std::vector<Reader::Kept>> Reader::kept_longest(WallTime now, int count_max) {
  const auto make = [](const Cursor& row) { return Kept(row.integer(0), static_cast<uint64_t>(row.integer(1))); };
  auto ahead = all_rows<Kept>(kept_ahead_.query(now.time_since_epoch().count(), count_max), make);
  if (!ahead || !ahead->empty()) return ahead;
  return all_rows<Kept>(kept_longest_.query(count_max), make);
}

Result<std::vector<Reader::Doomed>> Reader::doomed(int count_max) {
  return all_rows<Doomed>(doomed_.query(count_max), [](const Cursor& row) {
    return Doomed{.id = row.integer(0),
                  .request_id = row.uuid(1),
                  .answer_id = static_cast<ContentId>(row.integer(2)),
                  .with_audit = row.integer(3) != 0};
  });
}

Result<std::vector<Reader::Unfinished>> Reader::unfinished() {
  return all_rows<Unfinished>(unfinished_.query(), [](const Cursor& row) {
    return Unfinished{.fence = {row.uuid(0), static_cast<int>(row.integer(1))},
                      .state = static_cast<State>(row.integer(2)),
                      .gpu_count = static_cast<int>(row.integer(3))};
  });
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
