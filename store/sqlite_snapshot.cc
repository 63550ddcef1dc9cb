#include "store/sqlite_snapshot.h"

#include <fcntl.h>
#include <sqlite3.h>

#include <utility>

#include "base/unique_fd.h"
#include "schema/limits.h"

namespace kcoral::store {
namespace {

constexpr int kStepPages = 64;  // of 4 KiB

}  // namespace

Result<std::unique_ptr<DatabaseSnapshot>> DatabaseSnapshot::take(const std::string& path) {
  auto source = Database::open(path, Database::Access::kReader);
  if (!source) return fail(source.error());
  if (auto begun = (*source)->execute("BEGIN"); !begun) return fail(begun.error());
  // The first look is what fixes the state that is seen.
  auto pages = (*source)->query_text("PRAGMA page_count");
  if (!pages) return fail(pages.error());
  auto page_bytes = (*source)->query_text("PRAGMA page_size");
  if (!page_bytes) return fail(page_bytes.error());
  std::unique_ptr<DatabaseSnapshot> snapshot(new DatabaseSnapshot());
  snapshot->source_ = std::move(*source);
  snapshot->page_bytes_ = std::stoull(*page_bytes);
  snapshot->size_bytes_ = std::stoull(*pages) * snapshot->page_bytes_;
  return snapshot;
}

Status DatabaseSnapshot::copy_to(const std::string& path, const std::function<Status(uint64_t bytes_done)>& progress) {
  UniqueFd file;  // closed last: to close any descriptor of a file ends the locks that SQLite holds on it
  auto copy = Database::open(path, Database::Access::kWriter);
  if (!copy) return fail(copy.error());
  // What becomes of a copy that is not whole is nobody's concern, and the sync of a whole one is the caller's.
  if (auto set = (*copy)->execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF"); !set) return set;
  file.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return fail_errno("open", path);

  sqlite3_backup* const backup = ::sqlite3_backup_init((*copy)->handle_, "main", source_->handle_, "main");
  if (backup == nullptr) return (*copy)->failure(::sqlite3_errcode((*copy)->handle_), "copying");
  Status asked;
  uint64_t synced_bytes = 0;
  int code = SQLITE_OK;
  while (asked && code == SQLITE_OK) {
    code = ::sqlite3_backup_step(backup, kStepPages);
    const int done = ::sqlite3_backup_pagecount(backup) - ::sqlite3_backup_remaining(backup);
    const uint64_t done_bytes = static_cast<uint64_t>(done) * page_bytes_;
    if (done_bytes >= synced_bytes + limits::kBackupSyncBytes) {
      if (::fdatasync(file.get()) != 0) asked = fail_errno("fdatasync", path);
      synced_bytes = done_bytes;
    }
    if (asked) asked = progress(done_bytes);
  }
  const int finished = ::sqlite3_backup_finish(backup);
  if (!asked) return asked;
  if (finished != SQLITE_OK) return (*copy)->failure(finished, "copying");
  // Of a lock, which one could wait for and step on, `finish` says nothing.
  if (code != SQLITE_DONE) return (*copy)->failure(code, "copying");
  // The copied header wants a write-ahead log. Without one the copy is one file; a server gives it a log again.
  return (*copy)->execute("PRAGMA journal_mode=DELETE");
}

}  // namespace kcoral::store
