#include "executor/install_paths.h"

#include <filesystem>
#include <system_error>

namespace kcoral::executor {

namespace fs = std::filesystem;

Result<InstallPaths> find_install_paths(const std::string& executable) {
  const fs::path programs = fs::path(executable).parent_path();
  const fs::path ours = (programs / "../lib/kcoral").lexically_normal();
  InstallPaths paths{programs / "kcoral-executor", ours / "kcoral-init", ours / "libkcoral_sandbox.so",
                     ours / "libkcoral_timing.so", ours / "python",      ""};
  for (const std::string& path :
       {paths.executor, paths.init, paths.sandbox_library, paths.timing_library, paths.python_directory}) {
    std::error_code error;
    if (!fs::exists(path, error)) {
      return fail(ErrorKind::kEnvironment, "{} is missing; is the installation around {} complete?", path, executable);
    }
  }
  std::error_code error;
  if (const fs::path carried = ours / "bwrap"; fs::exists(carried, error)) paths.bubblewrap = carried;
  return paths;
}

Result<std::string> own_executable() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (error) return fail(ErrorKind::kEnvironment, "cannot read /proc/self/exe: {}", error.message());
  return path.string();
}

}  // namespace kcoral::executor
