// The outer ring of the sandbox: bubblewrap's command line for one slot.
//
// Inside a slot there are: /usr and what belongs to it, a few files of /etc, /opt, the interpreter's own directories
// and what the operator names, all read-only; our own files under /kcoral, copied in so that the slot's user need not
// be able to reach them outside; a generated passwd; an empty network, its own host name, processes and ipc objects.
// Nothing else of the host has a name in there, the data directory least of all. Nothing can be written but the
// zygote's own /tmp and /run/kcoral, which each program covers with fresh ones.
//
// Plain functions and values without shared state; they only look at what exists on the host.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memfd.h"
#include "base/unique_fd.h"
#include "executor/install_paths.h"

namespace kcoral::executor {

// Where things lie inside; the zygote and the runtime know these names too.
inline constexpr const char* kInitInside = "/kcoral/init";
inline constexpr const char* kSandboxLibraryInside = "/kcoral/libkcoral_sandbox.so";
inline constexpr const char* kTimingLibraryInside = "/kcoral/libkcoral_timing.so";
inline constexpr const char* kPythonDirectoryInside = "/kcoral/python";
inline constexpr const char* kHomeInside = "/run/kcoral/home";

/// A file that is copied into the slot.
struct SlotFile {
  std::string path_inside;
  bool executable = false;
  std::shared_ptr<const SealedMemory> content;
};

/// Our own files. Read before privileges are dropped: the slot's user may be unable to.
Result<std::vector<SlotFile>> load_slot_files(const InstallPaths& paths);

/// bubblewrap, found and opened: its file can be executed by a user who cannot reach its path.
struct Bubblewrap {
  std::string path;
  UniqueFd file;
};

/// The one that the installation carries, else the system's. Opened before privileges are dropped, as our files are
/// read. kEnvironment says how to install it.
Result<std::shared_ptr<const Bubblewrap>> open_bubblewrap(const InstallPaths& paths);

struct SlotSpec {
  uid_t uid = 0;  // not 0
  gid_t gid = 0;
  std::string python;                              // path of the interpreter
  std::map<std::string, std::string> environment;  // the operator's, over the allow list
  std::vector<std::string> read_only_paths;        // absolute; the interpreter's and the operator's
  std::vector<std::string> device_nodes;           // of the host's /dev, shown beside the harmless ones
  std::vector<std::string> hidden_paths;           // never visible, also where a directory around them is
  std::vector<SlotFile> files;
  std::shared_ptr<const Bubblewrap> bubblewrap;
};

struct SlotCommand {
  std::vector<std::string> arguments;  // [0] is bubblewrap's path
  /// Contents that bubblewrap reads from these descriptor numbers, from their beginning.
  std::vector<std::pair<int, std::shared_ptr<const SealedMemory>>> inputs;
};

/// `command` runs inside, as pid 1 of the slot's zygote namespace (through kcoral-init). Descriptors below
/// `first_free_fd` are left for it. Requires: spec.bubblewrap.
Result<SlotCommand> make_slot_command(const SlotSpec& spec, const std::vector<std::string>& command, int first_free_fd);

/// The environment of the slot: the allow list of the contract's section 10 and the operator's additions.
std::map<std::string, std::string> slot_environment(const SlotSpec& spec);

}  // namespace kcoral::executor
