// Which Python the slots run, and what of the host it needs to see.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace kcoral::executor {

struct PythonChoice {
  std::string path;                          // absolute; inside a virtual environment where it is one
  std::string version;                       // "3.11.2"
  std::string why;                           // for the start line: "first python3 on PATH that uid 65534 can run"
  bool has_torch = false;                    // PyTorch is installed there
  std::vector<std::string> read_only_paths;  // its prefixes and module directories outside of /usr
};

/// `explicit_path`: the operator's choice, which must work. Otherwise the first python3 on PATH that `uid` can reach
/// and run (a root shell's own often lies under its 0700 home), else /usr/bin/python3. Runs each candidate as that
/// user. kEnvironment: missing, not executable for the user, no Python, or older than 3.10. Blocks.
Result<PythonChoice> find_python(const std::optional<std::string>& explicit_path, uid_t uid, gid_t gid);

}  // namespace kcoral::executor
