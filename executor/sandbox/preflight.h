// Whether a slot can be made on this host, asked before anything is served.
#pragma once

#include <sys/types.h>

#include "base/error.h"
#include "executor/install_paths.h"

namespace kcoral::executor {

/// Makes a slot of `uid` and `gid` with an empty program in it, as an executor would. kEnvironment: one line that says
/// what is missing (bubblewrap, user namespaces, nested namespaces, ...). Blocks, for some tens of milliseconds as a
/// rule.
Status check_sandbox(const InstallPaths& paths, uid_t uid, gid_t gid);

}  // namespace kcoral::executor
