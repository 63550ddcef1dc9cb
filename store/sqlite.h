// SQLite behind a small RAII face; sqlite.cc is the only file of ours that knows sqlite3.h.
//
// It promises: a statement never outlives a failure unnoticed (every step returns a Result), a cursor leaves its
// statement reset however it is left, and a full disk, want of memory and a lock of somebody else (kBusy) and a file
// that cannot be reached (kEnvironment) are told apart from everything else (kEngine). On a writer's connection that
// has been armed, an I/O error or a corrupt file ends the process: after a failed sync nobody can say what is durable,
// and going on would break promises that were already made.
//
// A Database and its statements belong to one thread at a time. Statements and cursors must not outlive their Database.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "base/uuid.h"

struct sqlite3;
struct sqlite3_stmt;

namespace kcoral::store {

/// Binds as BLOB what would else be bound as TEXT.
struct BlobValue {
  std::string_view bytes;
};

class Statement;

class Database {
 public:
  /// Only one connection of a process may be the writer: SQLite before 3.51.3 can corrupt a database when two
  /// connections write or checkpoint around a reset of the WAL.
  enum class Access { kWriter, kReader };

  /// Requires for kReader: a writer's connection has opened the database before, and closes it after.
  static Result<std::unique_ptr<Database>> open(const std::string& path, Access access);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  /// Runs one or more statements without parameters and rows.
  Status execute(const std::string& sql);
  /// Requires: `sql` is one statement that fits the tables; a statement that is not is an error of the program.
  Result<Statement> prepare(std::string_view sql);
  /// The first column of the first row; empty if there is none.
  Result<std::string> query_text(std::string_view sql);

  int64_t last_insert_rowid() const;
  /// How many rows were inserted, changed or removed since it was opened, undone ones included.
  int64_t rows_changed() const;
  /// False after an error for which SQLite rolled the whole transaction back.
  bool in_transaction() const;

  /// From here on an I/O error is fatal. Before, while a database is being opened, it is an error like any other.
  void make_io_errors_fatal() { io_errors_are_fatal_ = true; }

  /// Moves the WAL into the database once it has grown; to be called by the writer between transactions.
  Status checkpoint_if_due();

 private:
  friend class Statement;
  friend class Cursor;
  friend class DatabaseSnapshot;
  Database() = default;
  Status failure(int code, std::string_view what) const;

  sqlite3* handle_ = nullptr;
  std::string name_;  // of its file: messages may reach a client, whom the path is no concern of
  bool io_errors_are_fatal_ = false;
  int wal_pages_ = 0;
};

/// The rows of one execution. Resets its statement when it goes out of scope.
class Cursor {
 public:
  explicit Cursor(Statement& statement) : statement_(&statement) {}
  Cursor(Cursor&& other) noexcept : statement_(std::exchange(other.statement_, nullptr)) {}
  Cursor& operator=(Cursor&&) = delete;
  ~Cursor();

  /// True when there is a row, false after the last.
  Result<bool> next();

  // The columns of the current row, from 0. Views live until the next call of `next`.
  bool is_null(int column) const;
  int64_t integer(int column) const;
  double real(int column) const;
  std::string_view text(int column) const;
  std::string_view blob(int column) const;
  Digest digest(int column) const;
  Uuid uuid(int column) const;

 private:
  Statement* statement_;
};

/// A prepared statement that is kept and run again and again.
class Statement {
 public:
  Statement() = default;
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  /// Runs to the end. Values: integers, doubles, text, BlobValue, Digest, Uuid, std::optional of these, nullptr.
  template <typename... Values>
  Status execute(const Values&... values) {
    Cursor cursor = query(values...);
    auto row = cursor.next();
    if (!row) return fail(row.error());
    return {};
  }

  /// Requires: text and blobs outlive the cursor.
  template <typename... Values>
  Cursor query(const Values&... values) {
    int index = 0;
    (bind(++index, values), ...);
    return Cursor(*this);
  }

 private:
  friend class Database;
  friend class Cursor;
  Statement(Database& database, sqlite3_stmt* handle) : database_(&database), handle_(handle) {}

  void bind(int index, int64_t value);
  void bind(int index, int value) { bind(index, static_cast<int64_t>(value)); }
  void bind(int index, uint64_t value) { bind(index, static_cast<int64_t>(value)); }
  void bind(int index, bool value) { bind(index, static_cast<int64_t>(value)); }
  void bind(int index, double value);
  void bind(int index, std::string_view text);
  void bind(int index, const std::string& text) { bind(index, std::string_view(text)); }
  void bind(int index, BlobValue blob);
  void bind(int index, const Digest& digest);
  void bind(int index, const Uuid& id);
  void bind(int index, std::nullptr_t);
  template <typename T>
  void bind(int index, const std::optional<T>& value) {
    if (value) {
      bind(index, *value);
    } else {
      bind(index, nullptr);
    }
  }

  Database* database_ = nullptr;
  sqlite3_stmt* handle_ = nullptr;
};

}  // namespace kcoral::store
