#include "executor/supervisor/process_memory.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace kcoral::executor {
namespace {

constexpr uint64_t kKiB = 1024;

std::string process_directory(pid_t pid) { return "/proc/" + std::to_string(pid); }

/// `roots` and their descendants, each with its parent (a root with 0); see proc_pid_task(5), "children". Each once,
/// also when its parent's thread ends meanwhile and it moves to another.
std::unordered_map<pid_t, pid_t> tree_of(const std::vector<pid_t>& roots) {
  std::unordered_map<pid_t, pid_t> tree;
  for (const pid_t root : roots) tree.emplace(root, 0);
  for (std::vector<pid_t> unvisited = roots; !unvisited.empty();) {
    const pid_t parent = unvisited.back();
    unvisited.pop_back();
    std::error_code error;
    std::filesystem::directory_iterator threads(process_directory(parent) + "/task", error);
    for (; !error && threads != std::filesystem::directory_iterator(); threads.increment(error)) {
      std::ifstream children(threads->path() / "children");
      for (pid_t child; children >> child;) {
        if (tree.emplace(child, parent).second) unvisited.push_back(child);
      }
    }
  }
  return tree;
}

/// The sum of lines like "RssAnon:     1234 kB" in a file of a process's directory; nothing if it cannot be read.
std::optional<uint64_t> sum_of_lines(pid_t pid, const char* file, std::initializer_list<std::string_view> names) {
  std::ifstream lines(process_directory(pid) + "/" + file);
  uint64_t bytes = 0;
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    for (const std::string_view name : names) {
      if (!line.starts_with(name)) continue;
      const size_t digits = line.find_first_not_of(" \t", name.size());
      if (digits == std::string::npos) continue;
      uint64_t kib = 0;
      std::from_chars(line.data() + digits, line.data() + line.size(), kib);
      bytes += kib * kKiB;
      found = true;
    }
  }
  if (!found) return std::nullopt;
  return bytes;
}

std::optional<uint64_t> quick_bytes(pid_t pid) {
  return sum_of_lines(pid, "status", {"RssAnon:", "RssShmem:", "VmSwap:"});
}

/// Whether two processes have one memory, as between vfork and exec. False where the kernel does not tell.
bool share_memory(pid_t one, pid_t other) { return ::syscall(SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0; }

}  // namespace

uint64_t memory_of(const std::vector<pid_t>& roots, uint64_t enough) {
  struct Process {
    pid_t pid;
    pid_t parent;
    uint64_t bytes;
  };
  std::vector<Process> processes;
  uint64_t at_most = 0;
  for (const auto& [pid, parent] : tree_of(roots)) {
    const uint64_t bytes = quick_bytes(pid).value_or(0);
    processes.push_back({pid, parent, bytes});
    at_most += bytes;
  }
  std::sort(processes.begin(), processes.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (const Process& process : processes) {
    if (at_most <= enough) break;
    auto close = sum_of_lines(process.pid, "smaps_rollup", {"Pss_Anon:", "Pss_Shmem:", "SwapPss:"});
    if (process.parent != 0 && share_memory(process.pid, process.parent)) close = 0;
    // Where it cannot be read the quick figure is as good as it gets; nothing if it has just ended.
    if (!close) close = quick_bytes(process.pid);
    at_most -= process.bytes - std::min(process.bytes, close.value_or(0));
  }
  return at_most;
}

bool descendants_are_told() { return std::filesystem::exists("/proc/thread-self/children"); }

}  // namespace kcoral::executor
