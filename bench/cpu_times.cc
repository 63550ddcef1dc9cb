#include "bench/cpu_times.h"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace kcoral::bench {
namespace {

struct Process {
  std::string name;
  pid_t parent = 0;
  double own_ticks = 0;
  double reaped_ticks = 0;  // of children that ended
};

/// One line of /proc/PID/stat; see proc(5). The name stands in parentheses and may hold anything.
bool read_process(const std::filesystem::path& path, Process& process) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return false;
  const size_t open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return false;
  process.name = line.substr(open + 1, close - open - 1);
  std::istringstream fields(line.substr(close + 1));
  std::string skipped;
  fields >> skipped >> process.parent;
  for (int i = 0; i < 9; ++i) fields >> skipped;  // up to cmajflt
  double user = 0, system = 0, reaped_user = 0, reaped_system = 0;
  fields >> user >> system >> reaped_user >> reaped_system;
  process.own_ticks = user + system;
  process.reaped_ticks = reaped_user + reaped_system;
  return !fields.fail();
}

std::map<pid_t, Process> read_processes() {
  std::map<pid_t, Process> processes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ptr != name.data() + name.size()) continue;
    Process process;
    if (read_process(entry.path() / "stat", process)) processes[pid] = std::move(process);
  }
  return processes;
}

}  // namespace

Result<CpuTimes> cpu_times_of(pid_t server) {
  const std::map<pid_t, Process> processes = read_processes();
  const auto is_below_server = [&](pid_t pid) {
    while (pid != server) {
      const auto found = processes.find(pid);
      if (found == processes.end()) return false;
      pid = found->second.parent;
    }
    return true;
  };
  const auto found = processes.find(server);
  if (found == processes.end()) return fail(ErrorKind::kEnvironment, "no process {} in /proc", server);
  const double ms_per_tick = 1000.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  CpuTimes times;
  times.server_ms = found->second.own_ticks * ms_per_tick;
  for (const auto& [pid, process] : processes) {
    if (pid == server || !is_below_server(pid)) continue;
    if (process.name == "kcoral-executor") {
      times.executors_ms += process.own_ticks * ms_per_tick;
    } else {
      times.runtimes_ms += (process.own_ticks + process.reaped_ticks) * ms_per_tick;
    }
  }
  return times;
}

}  // namespace kcoral::bench
