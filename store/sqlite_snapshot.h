// One committed state of a database, kept while its writer goes on, and a copy of that state in a file of its own.
//
// It promises: the copy has what was committed when the snapshot was taken, all of it and nothing else, however much is
// written meanwhile; the writer waits for none of it.
//
// Theory of operation. SQLite's backup interface copies page by page. By itself it looks at the newest state in each
// step, and begins anew when another connection has written in between: under load it would never come to its end. So
// the connection that it reads has a transaction open all the while, which in a database with a write-ahead log is a
// snapshot: no step sees anything else, nothing begins anew, and the writer appends to the log as ever. The price is
// that the log cannot be moved into the database until the copy is there, so it grows by what is written meanwhile.
// VACUUM INTO would have the same snapshot and the same price, but it makes every row and index anew, says nothing of
// how far it is, and syncs nothing.
//
// Belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "store/sqlite.h"

namespace kcoral::store {

class DatabaseSnapshot {
 public:
  /// What is committed now. Requires: as Database::open does for a reader.
  static Result<std::unique_ptr<DatabaseSnapshot>> take(const std::string& path);

  /// How large a copy is.
  uint64_t size_bytes() const { return size_bytes_; }

  /// Writes a file that is there not yet. `progress` is asked about four times for each MiB whether to go on; its error
  /// ends the copy. The disk is kept writing all the while, so that nobody else's sync waits for all of it at once; the
  /// end of the copy is on the disk only after a sync of the file.
  Status copy_to(const std::string& path, const std::function<Status(uint64_t bytes_done)>& progress);

 private:
  DatabaseSnapshot() = default;

  std::unique_ptr<Database> source_;
  uint64_t page_bytes_ = 0;
  uint64_t size_bytes_ = 0;
};

}  // namespace kcoral::store
