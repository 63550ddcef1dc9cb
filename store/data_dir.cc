#include "store/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/files.h"

namespace kcoral::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLockName = "lock";

tl::unexpected<Error> unusable(const std::string& path, std::string_view why) {
  return fail(ErrorKind::kEnvironment, "the data directory {} cannot be used: {}", path, why);
}

Status create_directory(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error).lexically_normal();
  if (error) return unusable(path, error.message());
  const fs::path parent = absolute.has_filename() ? absolute.parent_path() : absolute.parent_path().parent_path();
  std::vector<fs::path> missing;
  for (fs::path above = parent; !fs::exists(above, error) && above.has_relative_path(); above = above.parent_path()) {
    missing.push_back(above);
  }
  fs::create_directories(parent, error);
  if (error) return unusable(path, error.message());
  for (const fs::path& made : missing) {
    if (auto synced = sync_path(made.parent_path()); !synced) return unusable(path, synced.error().message);
  }
  const bool is_new = ::mkdir(path.c_str(), 0700) == 0;
  if (!is_new && errno != EEXIST) return unusable(path, std::strerror(errno));
  // A server that was killed may have made it and not synced it. Where we are not permitted to somebody else made it.
  if (!is_new && !open_directory(parent) && (errno == EACCES || errno == EPERM)) return {};
  if (auto synced = sync_path(parent); !synced) return unusable(path, synced.error().message);
  return {};
}

/// Refuses the directory of something else: making it private would lock others out of it. Ours has the database, or
/// nothing but what is there before it.
Status check_contents(const std::string& path) {
  std::error_code error;
  bool is_bare = true;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == DataDir::kDatabaseName) return {};
    is_bare = is_bare && (name == kLockName || name == "lost+found");  // the latter: a file system of its own
  }
  if (error) return unusable(path, error.message());
  if (is_bare) return {};
  return fail(ErrorKind::kEnvironment,
              "{} exists and is no kcoral data directory: name a new or an empty directory instead", path);
}

Result<UniqueFd> take_lock(const std::string& path) {
  UniqueFd lock(::open(fmt::format("{}/{}", path, kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return unusable(path, std::strerror(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return unusable(path, std::strerror(errno));
    std::array<char, 32> holder{};
    const ssize_t length = ::pread(lock.get(), holder.data(), holder.size() - 1, 0);
    return unusable(path, fmt::format("another server has it (process {}); stop that one or choose another directory",
                                      length > 0 ? holder.data() : "unknown"));
  }
  // For the message above only: the lock itself is the kernel's.
  const std::string holder = std::to_string(::getpid());
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), holder.data(), holder.size(), 0) < 0) {
    return unusable(path, std::strerror(errno));
  }
  return lock;
}

}  // namespace

Result<DataDir> DataDir::open(const std::string& path) {
  if (path.empty()) return unusable(path, "its name is empty");
  if (auto created = create_directory(path); !created) return fail(created.error());
  UniqueFd directory = open_directory(path);
  if (!directory) return unusable(path, std::strerror(errno));
  if (auto ours = check_contents(path); !ours) return fail(ours.error());
  struct stat status {};
  if (::fstat(directory.get(), &status) != 0) return unusable(path, std::strerror(errno));
  if ((status.st_mode & 0777) != 0700 && ::fchmod(directory.get(), 0700) != 0) {
    return unusable(path, fmt::format("its mode is not 0700 and cannot be changed: {}", std::strerror(errno)));
  }
  auto lock = take_lock(path);
  if (!lock) return fail(lock.error());
  return DataDir(path, std::move(directory), std::move(*lock));
}

Status DataDir::sync() const {
  if (::fsync(directory_.get()) != 0) return unusable(path_, std::strerror(errno));
  return {};
}

}  // namespace kcoral::store
