// Directories and files by their paths: opening the one, and having both on the disk.
//
// Thread-safe.
#pragma once

#include <string>

#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral {

/// For reading; invalid, and errno says why, if it cannot be. `flags`: what `open` is to be told besides.
UniqueFd open_directory(const std::string& path, int flags = 0);

/// Makes durable what a file holds, or which names a directory has.
Status sync_path(const std::string& path);

}  // namespace kcoral
