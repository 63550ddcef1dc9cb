#include "store/queue_database.h"

#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/files.h"

namespace kcoral::store {
namespace {

constexpr const char* kApplicationId = "1801679468";  // "kcrl": tells our files from other databases

// Each entry leads from one user_version to the next. What is released is never edited: append.
//
// Times are microseconds since the epoch. States and codecs are the values of schema/state.h and program_text.h.
// requests.seq is the order of submission. audit_next is the number of the request's next audit record, audit_us the
// time of its last: a clock that is set back does not make the records run backwards. answer_id names the artifact
// (content.h); 0 if the answer is in `answers`, null once it was pruned; kept_bytes is
// what it and its output take. `doomed` names content that no row refers to any more and that is still to be removed.
// What a run without such an answer had printed is in `outputs` (streams are the values of lookups.h). The program's
// text has a table of its own, so that the rows which every step rewrites stay short. outbox.records holds one or more
// records with consecutive numbers from first_seq, separated by U+001E.
constexpr std::array<const char*, 1> kMigrations = {R"sql(
  CREATE TABLE requests (
    seq INTEGER PRIMARY KEY,
    request_id BLOB NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    client TEXT NOT NULL,
    peer TEXT NOT NULL,
    state INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    synchronous INTEGER NOT NULL,
    labels TEXT NOT NULL,
    timeout_ms INTEGER NOT NULL,
    output_limit_bytes INTEGER NOT NULL,
    gpu_count INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    submitted_us INTEGER NOT NULL,
    queued_us INTEGER NOT NULL,
    started_us INTEGER,
    finished_us INTEGER,
    executor TEXT NOT NULL DEFAULT '',
    gpu_ids TEXT NOT NULL DEFAULT '[]',
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    pid INTEGER,
    program_sha256 BLOB NOT NULL,
    program_bytes INTEGER NOT NULL,
    error_kind TEXT NOT NULL DEFAULT '',
    error_message TEXT NOT NULL DEFAULT '',
    queue_ms REAL,
    elapsed_ms REAL,
    lease_wait_ms REAL,
    lease_held_ms REAL,
    results_summary TEXT NOT NULL DEFAULT '[]',
    answer_id INTEGER,
    kept_bytes INTEGER NOT NULL DEFAULT 0,
    audit_next INTEGER NOT NULL,
    audit_us INTEGER NOT NULL
  ) STRICT;
  CREATE INDEX requests_by_time ON requests (submitted_us, seq);
  CREATE INDEX requests_by_client ON requests (client, submitted_us, seq);
  CREATE INDEX requests_queued ON requests (submitted_us, seq) WHERE state = 0;
  CREATE INDEX requests_in_progress ON requests (state) WHERE state IN (1, 2);
  CREATE INDEX requests_kept ON requests (finished_us, seq, kept_bytes) WHERE kept_bytes > 0;
  CREATE INDEX requests_ended ON requests (state, submitted_us, seq) WHERE state > 2;

  CREATE TABLE request_labels (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    submitted_us INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (name, value, submitted_us, seq)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX request_labels_by_name ON request_labels (name, submitted_us, seq);

  CREATE TABLE programs (
    seq INTEGER PRIMARY KEY,
    codec INTEGER NOT NULL,
    text BLOB NOT NULL
  ) STRICT;

  CREATE TABLE answers (
    seq INTEGER PRIMARY KEY,
    header TEXT NOT NULL,
    content BLOB NOT NULL
  ) STRICT;

  CREATE TABLE outputs (
    seq INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    codec INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    text BLOB NOT NULL,
    PRIMARY KEY (seq, stream)
  ) STRICT;

  CREATE TABLE request_blobs (
    seq INTEGER NOT NULL,
    position INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (seq, position)
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE doomed (
    id INTEGER PRIMARY KEY,
    request_id BLOB NOT NULL,
    answer_id INTEGER NOT NULL,
    with_audit INTEGER NOT NULL
  ) STRICT;

  CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    request_id BLOB NOT NULL,
    first_seq INTEGER NOT NULL,
    records TEXT NOT NULL
  ) STRICT;
)sql"};

Status migrate(Database& database, size_t version) {
  for (; version < kMigrations.size(); ++version) {
    const std::string step =
        fmt::format("BEGIN IMMEDIATE; PRAGMA application_id={}; {} PRAGMA user_version={}; COMMIT;", kApplicationId,
                    kMigrations[version], version + 1);
    if (auto done = database.execute(step); !done) return done;
  }
  return {};
}

/// A server that was killed may have left commits that it had not synced yet, and the kernel still has them. Nobody may
/// hear of them before a loss of power would leave them too.
Status sync_what_was_left(const std::string& path) {
  const std::string wal = path + "-wal";
  if (::access(wal.c_str(), F_OK) != 0 && errno == ENOENT) return {};
  return sync_path(wal);
}

}  // namespace

Result<std::unique_ptr<Database>> open_queue_database(const std::string& path) {
  const auto unusable = [&path](std::string_view why) { return fail(ErrorKind::kEnvironment, "{} {}", path, why); };
  if (auto synced = sync_what_was_left(path); !synced) return unusable(synced.error().message);
  auto database = Database::open(path, Database::Access::kWriter);
  if (!database) return fail(database.error());
  auto application_id = (*database)->query_text("PRAGMA application_id");
  auto version_text = (*database)->query_text("PRAGMA user_version");
  auto table_count = (*database)->query_text("SELECT count(*) FROM sqlite_schema");
  if (!application_id || !version_text || !table_count) return unusable("is not a database of kcoral");
  if (*application_id != kApplicationId && *table_count != "0") return unusable("is not a database of kcoral");
  const size_t version = std::stoul(*version_text);
  if (version > kMigrations.size()) {
    return unusable(fmt::format("was written by a newer kcoral (form {}; this one knows {}): run that one", version,
                                kMigrations.size()));
  }
  auto mode = (*database)->query_text("PRAGMA journal_mode=WAL");
  if (!mode) return unusable(mode.error().message);
  if (*mode != "wal") return unusable("cannot have a write-ahead log: is its file system a local one?");
  // A commit that is answered survives the loss of power (with NORMAL a simulated power cut lost 700 of 700 commits,
  // with FULL none).
  if (auto set = (*database)->execute("PRAGMA synchronous=FULL"); !set) return unusable(set.error().message);
  if (auto migrated = migrate(**database, version); !migrated) return unusable(migrated.error().message);
  (*database)->make_io_errors_fatal();
  return database;
}

}  // namespace kcoral::store
