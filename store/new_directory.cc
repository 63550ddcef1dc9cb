#include "store/new_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/log.h"

namespace kcoral::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIsMountPoint = "it is a mount point: name a new directory inside of it";

std::string beside(const std::string& path) { return path + ".incomplete"; }

tl::unexpected<Error> unusable(const std::string& path, std::string_view why) {
  return fail(ErrorKind::kEnvironment, "{} cannot be made: {}", path, why);
}

tl::unexpected<Error> unusable(const std::string& path, int number) {
  if (number == EACCES || number == EPERM) {
    return unusable(path, fmt::format("the server's user (uid {}) is not permitted to", ::geteuid()));
  }
  if (number == ENOSPC) return fail(ErrorKind::kBusy, "{} cannot be made: no space is left on its disk", path);
  return unusable(path, std::strerror(number));
}

/// Such as nothing can be renamed to. Of one that shows a part of its parent's own file system only the rename says so.
bool is_mount_point(const std::string& directory) {
  struct stat here {};
  struct stat above {};
  const std::string parent = fs::path(directory).parent_path();
  return ::lstat(directory.c_str(), &here) == 0 && ::stat(parent.c_str(), &above) == 0 && here.st_dev != above.st_dev;
}

Status check_name(const std::string& path) {
  std::error_code error;
  if (!fs::path(path).has_filename()) return unusable(path, "it has no name of its own");
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::not_found) {
    const std::string parent = fs::path(path).parent_path();
    const fs::file_type type = fs::status(parent, error).type();
    if (type == fs::file_type::directory) return {};
    if (type == fs::file_type::not_found) return unusable(path, parent + " does not exist");
    return unusable(path, error ? error.message() : parent + " is no directory");
  }
  if (error) return unusable(path, error.message());
  if (status.type() != fs::file_type::directory) return unusable(path, "it exists, and is no directory");
  if (is_mount_point(path)) return unusable(path, kIsMountPoint);
  const bool is_empty = fs::is_empty(path, error);
  if (error) return unusable(path, error.message());
  if (!is_empty) return unusable(path, "it exists, and is not empty");
  return {};
}

/// Invalid while somebody else has it locked, or if it is not what lies at `path` any more.
UniqueFd locked(const std::string& path) {
  UniqueFd directory = open_directory(path, O_NOFOLLOW);
  struct stat ours {
  }, there{};
  if (!directory || ::flock(directory.get(), LOCK_EX | LOCK_NB) != 0) return UniqueFd();
  if (::fstat(directory.get(), &ours) != 0 || ::lstat(path.c_str(), &there) != 0) return UniqueFd();
  return ours.st_ino == there.st_ino && ours.st_dev == there.st_dev ? std::move(directory) : UniqueFd();
}

bool has_only(const std::string& directory, const std::vector<std::string>& entries) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (std::ranges::find(entries, entry->path().filename().string()) == entries.end()) return false;
  }
  return !error;
}

/// Files before the directory that names them.
Status sync_all(const std::string& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path();
    const bool is_directory = entry->is_directory(error);
    if (error) break;
    const Status synced = is_directory ? sync_all(path) : sync_path(path);
    if (!synced) return synced;
  }
  if (error) return fail(ErrorKind::kEnvironment, "{}: {}", directory, error.message());
  return sync_path(directory);
}

}  // namespace

bool NewDirectory::remove_leftover(const std::string& path, const std::vector<std::string>& entries) {
  struct stat status {};
  if (::lstat(beside(path).c_str(), &status) != 0) return errno == ENOENT;
  const UniqueFd lock = locked(beside(path));
  if (!lock || !has_only(beside(path), entries)) return false;
  std::error_code error;
  fs::remove_all(beside(path), error);
  return !error;
}

Result<NewDirectory> NewDirectory::create(const std::string& path, std::vector<std::string> entries) {
  if (auto fits = check_name(path); !fits) return fail(fits.error());
  const std::string meanwhile = beside(path);
  if (::mkdir(meanwhile.c_str(), 0700) != 0) {
    if (errno != EEXIST) return unusable(path, errno);
    if (!remove_leftover(path, entries)) {
      return unusable(
          path, fmt::format("{} is in the way; another backup is on its way there, or it is not ours", meanwhile));
    }
    if (::mkdir(meanwhile.c_str(), 0700) != 0) return unusable(path, errno);
  }
  UniqueFd lock = locked(meanwhile);
  if (!lock) return unusable(path, fmt::format("somebody else is at work on {}", meanwhile));
  return NewDirectory(path, meanwhile, std::move(lock));
}

NewDirectory::NewDirectory(NewDirectory&& other) noexcept
    : path_(std::move(other.path_)), now_at_(std::exchange(other.now_at_, {})), lock_(std::move(other.lock_)) {}

NewDirectory::~NewDirectory() {
  if (now_at_.empty()) return;
  std::error_code error;
  fs::remove_all(now_at_, error);
  if (error) spdlog::warn("{} is left behind: {}", now_at_, error.message());
}

Status NewDirectory::place() {
  if (auto synced = sync_all(now_at_); !synced) return synced;
  // Takes the place of an empty directory, and of nothing else.
  if (::rename(now_at_.c_str(), path_.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) {
      return unusable(path_, "somebody else has put something there meanwhile");
    }
    if (errno == EBUSY || errno == EXDEV) return unusable(path_, kIsMountPoint);
    return unusable(path_, errno);
  }
  now_at_ = path_;
  if (auto synced = sync_path(fs::path(path_).parent_path()); !synced) return synced;
  now_at_.clear();
  return {};
}

}  // namespace kcoral::store
