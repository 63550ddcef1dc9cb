#include "store/backup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/failpoint.h"
#include "base/unique_fd.h"
#include "schema/limits.h"
#include "store/content_checkpoint.h"
#include "store/data_dir.h"
#include "store/new_directory.h"
#include "store/sqlite.h"
#include "store/sqlite_snapshot.h"

namespace kcoral::store {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCopyBytes = limits::kMiB;
constexpr std::string_view kContentName = "content";

/// Without its database under its name the directory is none that a server starts from.
std::string database_name_meanwhile() { return fmt::format("{}.incomplete", DataDir::kDatabaseName); }

std::vector<std::string> entries() {
  const std::string database(DataDir::kDatabaseName);
  const std::string meanwhile = database_name_meanwhile();
  return {std::string(kContentName), database,           meanwhile,
          meanwhile + "-wal",        meanwhile + "-shm", meanwhile + "-journal"};
}

class Backup {
 public:
  Backup(const BackupSource& source, NewDirectory target, const BackupProgress& progress)
      : source_(source), target_(std::move(target)), progress_(progress) {}

  Result<BackupSummary> make() {
    for (const auto step : {&Backup::begin, &Backup::freeze, &Backup::list_content, &Backup::check_room,
                            &Backup::copy_database, &Backup::doom_the_unknown, &Backup::take_content, &Backup::place}) {
      if (auto done = (this->*step)(); !done) return fail(done.error());
    }
    return summary_;
  }

 private:
  struct File {
    std::string name;
    uint64_t size_bytes;
  };

  Status begin() { return advance(0); }
  Status freeze();
  Status list_content();
  Status check_room();
  Status copy_database();
  Status doom_the_unknown();
  Status doom_in(Database& database);
  Status take_content();
  Status take(const File& file);
  Status copy(const File& file, const std::string& from, const std::string& to);
  Status place();
  Status advance(uint64_t bytes_done) const;

  std::string database_path() const { return fmt::format("{}/{}", target_.path(), database_name_meanwhile()); }
  std::string content_path() const { return fmt::format("{}/{}", target_.path(), kContentName); }

  const BackupSource& source_;
  NewDirectory target_;
  const BackupProgress& progress_;
  std::unique_ptr<DatabaseSnapshot> snapshot_;
  std::unique_ptr<ContentCheckpoint> checkpoint_;
  std::vector<File> files_;  // of the checkpoint
  uint64_t done_bytes_ = 0;  // what is there whole
  BackupSummary summary_;
};

Status Backup::advance(uint64_t bytes_done) const {
  if (progress_(bytes_done, summary_.bytes)) return {};
  return fail(ErrorKind::kCancelled, "the backup was given up");
}

Status Backup::freeze() {
  const StepGate::Hold hold(source_.content.gate());
  auto snapshot = DatabaseSnapshot::take(source_.database_path);
  if (!snapshot) return fail(snapshot.error());
  snapshot_ = std::move(*snapshot);
  failpoint("backup.snapshot.taken");
  auto checkpoint = source_.content.checkpoint();
  if (!checkpoint) return fail(checkpoint.error());
  checkpoint_ = std::move(*checkpoint);
  failpoint("backup.content.held");
  return {};
}

Status Backup::list_content() {
  std::error_code error;
  for (fs::directory_iterator entry(checkpoint_->path(), error), end; !error && entry != end; entry.increment(error)) {
    const uint64_t size_bytes = entry->file_size(error);
    if (error) break;
    files_.push_back({entry->path().filename(), size_bytes});
    summary_.bytes += size_bytes;
  }
  if (error) return fail(ErrorKind::kEnvironment, "{}: {}", checkpoint_->path(), error.message());
  summary_.bytes += snapshot_->size_bytes();
  return {};
}

/// It may be the server's own disk, which is better not filled up first.
Status Backup::check_room() {
  struct stat here {
  }, there{};
  struct statvfs disk {};
  if (::stat(checkpoint_->path().c_str(), &here) != 0) return fail_errno("stat", checkpoint_->path());
  if (::stat(target_.path().c_str(), &there) != 0) return fail_errno("stat", target_.path());
  if (::statvfs(target_.path().c_str(), &disk) != 0) return fail_errno("statvfs", target_.path());
  uint64_t needed_bytes = snapshot_->size_bytes();
  for (const File& file : files_) {
    const bool is_linked = here.st_dev == there.st_dev && ContentCheckpoint::is_shareable(file.name);
    if (!is_linked) needed_bytes += file.size_bytes;
  }
  const uint64_t free_bytes = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (needed_bytes <= free_bytes) return {};
  return fail(ErrorKind::kBusy, "no space is left on the disk: the backup takes {} MiB there, and {} MiB are free",
              needed_bytes / limits::kMiB + 1, free_bytes / limits::kMiB);
}

Status Backup::copy_database() {
  auto copied =
      snapshot_->copy_to(database_path(), [this](uint64_t done_bytes) { return advance(done_bytes_ + done_bytes); });
  if (!copied) return copied;
  done_bytes_ += snapshot_->size_bytes();
  snapshot_.reset();
  failpoint("backup.database.copied");
  return {};
}

Status Backup::doom_the_unknown() {
  auto database = Database::open(database_path(), Database::Access::kWriter);
  if (!database) return fail(database.error());
  if (auto begun = (*database)->execute("BEGIN"); !begun) return begun;
  if (auto doomed = doom_in(**database); !doomed) return doomed;
  if (auto committed = (*database)->execute("COMMIT"); !committed) return committed;
  auto requests = (*database)->query_text("SELECT count(*) FROM requests");
  if (!requests) return fail(requests.error());
  summary_.requests = std::stoull(*requests);
  return {};
}

Status Backup::doom_in(Database& database) {
  // Those of runs that are under way go with the run, when the copy is recovered.
  auto find =
      database.prepare("SELECT 1 FROM requests WHERE request_id = ? AND (answer_id = ? OR state IN (1, 2)) LIMIT 1");
  if (!find) return fail(find.error());
  auto doom = database.prepare("INSERT INTO doomed (request_id, answer_id, with_audit) VALUES (?, ?, 0)");
  if (!doom) return fail(doom.error());
  return checkpoint_->for_each_artifact([&](const Uuid& request_id, ContentId id) -> Status {
    {
      Cursor cursor = find->query(request_id, id);
      auto found = cursor.next();
      if (!found) return fail(found.error());
      if (*found) return advance(done_bytes_);
    }
    return doom->execute(request_id, id);
  });
}

Status Backup::take_content() {
  if (::mkdir(content_path().c_str(), 0700) != 0) return fail_errno("mkdir", content_path());
  for (const File& file : files_) {
    if (auto taken = take(file); !taken) return taken;
    done_bytes_ += file.size_bytes;
    if (auto go_on = advance(done_bytes_); !go_on) return go_on;
  }
  failpoint("backup.content.copied");
  return {};
}

Status Backup::take(const File& file) {
  const std::string from = fmt::format("{}/{}", checkpoint_->path(), file.name);
  const std::string to = fmt::format("{}/{}", content_path(), file.name);
  // Another disk, or one without links: then by copying.
  if (ContentCheckpoint::is_shareable(file.name) && ::link(from.c_str(), to.c_str()) == 0) {
    summary_.bytes_shared += file.size_bytes;
    return {};
  }
  return copy(file, from, to);
}

Status Backup::copy(const File& file, const std::string& from, const std::string& to) {
  const UniqueFd in(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!in) return fail_errno("open", from);
  const UniqueFd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!out) return fail_errno("open", to);
  std::string buffer(kCopyBytes, '\0');
  uint64_t copied_bytes = 0;
  uint64_t synced_bytes = 0;
  for (;;) {
    const ssize_t got = ::read(in.get(), buffer.data(), buffer.size());
    if (got < 0) return fail_errno("read", from);
    if (got == 0) break;
    for (ssize_t done = 0; done < got;) {
      const ssize_t written = ::write(out.get(), buffer.data() + done, static_cast<size_t>(got - done));
      if (written < 0 && errno == ENOSPC) return fail(ErrorKind::kBusy, "no space is left on the disk of {}", to);
      if (written < 0) return fail_errno("write", to);
      done += written;
    }
    copied_bytes += static_cast<uint64_t>(got);
    if (copied_bytes >= synced_bytes + limits::kBackupSyncBytes) {
      if (::fdatasync(out.get()) != 0) return fail_errno("fdatasync", to);
      synced_bytes = copied_bytes;
    }
    if (auto go_on = advance(done_bytes_ + copied_bytes); !go_on) return go_on;
  }
  if (copied_bytes == file.size_bytes) return {};
  return fail(ErrorKind::kEngine, "{} has {} bytes and had {} before", from, copied_bytes, file.size_bytes);
}

Status Backup::place() {
  const std::string name = fmt::format("{}/{}", target_.path(), DataDir::kDatabaseName);
  if (::rename(database_path().c_str(), name.c_str()) != 0) return fail_errno("rename", name);
  // The last word of whoever asked for it: from here on there is no way back.
  if (auto go_on = advance(done_bytes_); !go_on) return go_on;
  if (auto placed = target_.place(); !placed) return placed;
  failpoint("backup.directory.placed");
  return {};
}

bool is_within(const fs::path& path, const fs::path& directory) {
  const fs::path below = path.lexically_relative(directory);
  return !below.empty() && *below.begin() != "..";
}

}  // namespace

Result<BackupSummary> back_up(const BackupSource& source, const std::string& directory,
                              const BackupProgress& progress) {
  const fs::path wanted(directory);
  if (!wanted.is_absolute()) return fail(ErrorKind::kEnvironment, "{} is no absolute path", directory);
  std::error_code error;
  const fs::path parent = fs::canonical(wanted.parent_path(), error);
  if (!error && is_within(parent / wanted.filename(), fs::canonical(source.data_dir, error))) {
    return fail(ErrorKind::kEnvironment, "{} is in the data directory itself: name a place outside of it", directory);
  }
  auto target = NewDirectory::create(directory, entries());
  if (!target) return fail(target.error());
  return Backup(source, std::move(*target), progress).make();
}

bool remove_incomplete_backup(const std::string& directory) {
  return NewDirectory::remove_leftover(directory, entries());
}

}  // namespace kcoral::store
