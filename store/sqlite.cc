#include "store/sqlite.h"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::store {
namespace {

// Of 4 KiB: about 4 MiB of WAL before it is moved into the database.
constexpr int kCheckpointPages = 1000;
// The WAL's file is cut to this when it begins anew: a backup may have kept it growing for long (sqlite_snapshot.h).
// Well above what it has otherwise, lest it be cut and made longer again and again.
constexpr uint64_t kWalFileBytesKept = 64 * limits::kMiB;
// Only an operator's own shell can hold the database against us; waiting for it is better than failing.
constexpr int kBusyTimeoutMs = 10'000;

// To a reader it may mean no more than that descriptors ran out. To the writer: what was written may or may not be on
// disk.
bool is_unreachable(int code) {
  const int primary = code & 0xff;
  return primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN || primary == SQLITE_READONLY;
}

// What is on disk is not what was written.
bool is_damaged(int code) {
  const int primary = code & 0xff;
  return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB;
}

bool is_out_of_memory(int code) { return (code & 0xff) == SQLITE_NOMEM || code == SQLITE_IOERR_NOMEM; }

// The WAL's index is extended by a write of its own, whose ENOSPC SQLite reports as an I/O error.
bool is_disk_full(int code) { return (code & 0xff) == SQLITE_FULL || code == SQLITE_IOERR_SHMSIZE; }

template <size_t kSize>
std::array<uint8_t, kSize> fixed_bytes(std::string_view blob) {
  KCORAL_CHECK(blob.size() == kSize);
  std::array<uint8_t, kSize> bytes;
  std::memcpy(bytes.data(), blob.data(), kSize);
  return bytes;
}

/// Once, before the first connection.
void configure_library() {
  // Statistics that nobody reads would take a lock for each piece of memory.
  static const int configured = ::sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
  KCORAL_CHECK(configured == SQLITE_OK);
}

}  // namespace

Result<std::unique_ptr<Database>> Database::open(const std::string& path, Access access) {
  configure_library();
  std::unique_ptr<Database> database(new Database());
  database->name_ = std::filesystem::path(path).filename();
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE |
                    (access == Access::kWriter ? SQLITE_OPEN_CREATE : 0);
  const int opened = ::sqlite3_open_v2(path.c_str(), &database->handle_, flags, nullptr);
  if (opened != SQLITE_OK) {
    return fail(ErrorKind::kEnvironment, "cannot open {}: {}", path, ::sqlite3_errstr(opened));
  }
  ::sqlite3_extended_result_codes(database->handle_, 1);
  ::sqlite3_busy_timeout(database->handle_, kBusyTimeoutMs);
  // Checkpoints are the writer's, between transactions, where their errors are seen (SQLite drops those of its own).
  std::string pragmas = "PRAGMA wal_autocheckpoint=0; PRAGMA temp_store=MEMORY;";
  if (access == Access::kReader) {
    ::sqlite3_db_config(database->handle_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
    pragmas += "PRAGMA query_only=ON;";
  } else {
    pragmas += fmt::format("PRAGMA journal_size_limit={};", kWalFileBytesKept);
  }
  if (auto set = database->execute(pragmas); !set) {
    return fail(ErrorKind::kEnvironment, "{} is not a database of kcoral: {}", path, set.error().message);
  }
  int* const wal_pages = &database->wal_pages_;
  ::sqlite3_wal_hook(
      database->handle_,
      [](void* pages, sqlite3*, const char*, int count) {
        *static_cast<int*>(pages) = count;
        return SQLITE_OK;
      },
      wal_pages);
  return database;
}

Database::~Database() {
  // Statements must be gone by now: sqlite3_close refuses otherwise, which would leave the WAL behind.
  const int closed = ::sqlite3_close(handle_);
  KCORAL_CHECK(closed == SQLITE_OK);
}

Status Database::failure(int code, std::string_view what) const {
  const std::string message = fmt::format("{}: {}", what, ::sqlite3_errmsg(handle_));
  if (is_disk_full(code)) return fail(ErrorKind::kBusy, "no space is left on the disk of {}", name_);
  if (is_out_of_memory(code)) return fail(ErrorKind::kBusy, "{}: memory ran out", name_);
  if (io_errors_are_fatal_ && (is_unreachable(code) || is_damaged(code))) {
    spdlog::critical("{}: {} (code {}); what is durable is no longer known, so the server ends here", name_, message,
                     code);
    spdlog::default_logger()->flush();
    std::abort();
  }
  if ((code & 0xff) == SQLITE_BUSY) return fail(ErrorKind::kBusy, "{} is locked by another process", name_);
  if (is_unreachable(code)) return fail(ErrorKind::kEnvironment, "{}: {}", name_, message);
  return fail(ErrorKind::kEngine, "{}: {}", name_, message);
}

Status Database::execute(const std::string& sql) {
  const int code = ::sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return failure(code, sql.substr(0, 60));
  return {};
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* handle = nullptr;
  const int code = ::sqlite3_prepare_v3(handle_, sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT,
                                        &handle, nullptr);
  if (code != SQLITE_OK) return fail(failure(code, sql).error());
  return Statement(*this, handle);
}

Result<std::string> Database::query_text(std::string_view sql) {
  auto statement = prepare(sql);
  if (!statement) return fail(statement.error());
  Cursor cursor = statement->query();
  auto row = cursor.next();
  if (!row) return fail(row.error());
  return *row ? std::string(cursor.text(0)) : std::string();
}

int64_t Database::last_insert_rowid() const { return ::sqlite3_last_insert_rowid(handle_); }

int64_t Database::rows_changed() const { return ::sqlite3_total_changes64(handle_); }

bool Database::in_transaction() const { return ::sqlite3_get_autocommit(handle_) == 0; }

Status Database::checkpoint_if_due() {
  if (wal_pages_ < kCheckpointPages) return {};
  int in_wal = 0;
  int moved = 0;
  const int code = ::sqlite3_wal_checkpoint_v2(handle_, nullptr, SQLITE_CHECKPOINT_PASSIVE, &in_wal, &moved);
  // A reader that still looks at an old state holds a checkpoint back; the next one comes soon.
  if ((code & 0xff) == SQLITE_BUSY) return {};
  if (code != SQLITE_OK) return failure(code, "checkpoint");
  wal_pages_ = in_wal - moved;
  return {};
}

Cursor::~Cursor() {
  if (statement_ == nullptr) return;
  // Repeats the error of the last step, which `next` has returned already.
  (void)::sqlite3_reset(statement_->handle_);
  (void)::sqlite3_clear_bindings(statement_->handle_);
}

Result<bool> Cursor::next() {
  const int code = ::sqlite3_step(statement_->handle_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return fail(statement_->database_->failure(code, ::sqlite3_sql(statement_->handle_)).error());
}

bool Cursor::is_null(int column) const { return ::sqlite3_column_type(statement_->handle_, column) == SQLITE_NULL; }

int64_t Cursor::integer(int column) const { return ::sqlite3_column_int64(statement_->handle_, column); }

double Cursor::real(int column) const { return ::sqlite3_column_double(statement_->handle_, column); }

std::string_view Cursor::text(int column) const { return blob(column); }

std::string_view Cursor::blob(int column) const {
  const void* data = ::sqlite3_column_blob(statement_->handle_, column);
  const int size = ::sqlite3_column_bytes(statement_->handle_, column);
  return {static_cast<const char*>(data), static_cast<size_t>(size)};
}

Digest Cursor::digest(int column) const { return Digest::from_bytes(fixed_bytes<32>(blob(column))); }

Uuid Cursor::uuid(int column) const { return Uuid::from_bytes(fixed_bytes<16>(blob(column))); }

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_), handle_(std::exchange(other.handle_, nullptr)) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(database_, other.database_);
  std::swap(handle_, other.handle_);
  return *this;
}

Statement::~Statement() { (void)::sqlite3_finalize(handle_); }

// Binding fails only for an index that the statement does not have, or when memory ran out.
void Statement::bind(int index, int64_t value) {
  KCORAL_CHECK(::sqlite3_bind_int64(handle_, index, value) == SQLITE_OK);
}

void Statement::bind(int index, double value) {
  KCORAL_CHECK(::sqlite3_bind_double(handle_, index, value) == SQLITE_OK);
}

void Statement::bind(int index, std::string_view text) {
  KCORAL_CHECK(::sqlite3_bind_text64(handle_, index, text.data() == nullptr ? "" : text.data(), text.size(),
                                     SQLITE_STATIC, SQLITE_UTF8) == SQLITE_OK);
}

void Statement::bind(int index, BlobValue blob) {
  KCORAL_CHECK(::sqlite3_bind_blob64(handle_, index, blob.bytes.data() == nullptr ? "" : blob.bytes.data(),
                                     blob.bytes.size(), SQLITE_STATIC) == SQLITE_OK);
}

void Statement::bind(int index, const Digest& digest) {
  const auto& bytes = digest.bytes();
  bind(index, BlobValue{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
}

void Statement::bind(int index, const Uuid& id) {
  const auto& bytes = id.bytes();
  bind(index, BlobValue{{reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
}

void Statement::bind(int index, std::nullptr_t) { KCORAL_CHECK(::sqlite3_bind_null(handle_, index) == SQLITE_OK); }

}  // namespace kcoral::store
