// Where our own files lie: beside the programs, so that a build tree and an installation both work and can be moved.
//
//   PREFIX/bin/kcoral, kcoral-executor
//   PREFIX/lib/kcoral/kcoral-init, libkcoral_sandbox.so, libkcoral_timing.so, python/...
//   PREFIX/lib/kcoral/bwrap, in an installation that carries bubblewrap
#pragma once

#include <string>

#include "base/error.h"

namespace kcoral::executor {

struct InstallPaths {
  std::string executor;          // kcoral-executor
  std::string init;              // kcoral-init
  std::string sandbox_library;   // libkcoral_sandbox.so
  std::string timing_library;    // libkcoral_timing.so
  std::string python_directory;  // the zygote, the runtime and what a program may import of ours
  std::string bubblewrap;        // empty where none is carried: the system's is used
};

/// Looks beside `executable` (a path to a program of ours); kEnvironment names the first file that is missing.
Result<InstallPaths> find_install_paths(const std::string& executable);

/// The running program's own path, links resolved.
Result<std::string> own_executable();

}  // namespace kcoral::executor
