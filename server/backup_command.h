// `kcoral backup`: has a running server make a backup, shows how far it is, and says what came of it.
#pragma once

#include "server/options.h"

namespace kcoral::server {

/// The exit code. 0: the directory is there and whole. 1: it is not there, or the server ended before it said so; one
/// line on standard error says which, and why.
int run_backup(const BackupOptions& options);

}  // namespace kcoral::server
