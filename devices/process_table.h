// The processes of this machine, as the kernel shows them to the server.
//
// Thread-safe. What it says was so when it was asked: processes come and go.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kcoral::devices {

class ProcessTable {
 public:
  virtual ~ProcessTable() = default;

  struct Process {
    pid_t parent = 0;  // 0: none that can be seen from here
    size_t depth = 0;  // in how many pid namespaces it has a number, from that of this table on
    std::string name;  // at most 15 bytes; the process may have chosen it
    bool has_ended =
        false;  // with all its threads, and nothing of it is left but its number: nobody asked how it ended
  };
  /// None where there is no such process, or it cannot be seen from here.
  virtual std::optional<Process> find(pid_t pid) const = 0;
  virtual std::vector<pid_t> list() const = 0;

  /// Of the server itself.
  virtual size_t own_depth() const = 0;
  /// Whether every process of the machine is here: not in a container with a pid namespace of its own.
  virtual bool is_whole_machine() const = 0;

  /// That of /proc.
  static const ProcessTable& system();
};

}  // namespace kcoral::devices
