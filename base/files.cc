#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace kcoral {

UniqueFd open_directory(const std::string& path, int flags) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
}

Status sync_path(const std::string& path) {
  const UniqueFd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) return fail_errno("open", path);
  // A file system that is read-only, or keeps no directories on a disk, has nothing to sync.
  if (::fsync(opened.get()) != 0 && errno != EINVAL && errno != EROFS) return fail_errno("fsync", path);
  return {};
}

}  // namespace kcoral
