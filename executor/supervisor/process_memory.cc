#include "executor/supervisor/process_memory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

namespace kcoral::executor {
namespace {

constexpr uint64_t kKiB = 1024;

std::string process_directory(pid_t pid) { return "/proc/" + std::to_string(pid); }

/// `roots` and their descendants; see proc_pid_task(5), "children". Each once, also when its parent's thread ends
/// meanwhile and it moves to another.
std::unordered_set<pid_t> tree_of(const std::vector<pid_t>& roots) {
  std::unordered_set<pid_t> tree(roots.begin(), roots.end());
  for (std::vector<pid_t> unvisited = roots; !unvisited.empty();) {
    const pid_t parent = unvisited.back();
    unvisited.pop_back();
    std::error_code error;
    std::filesystem::directory_iterator threads(process_directory(parent) + "/task", error);
    for (; !error && threads != std::filesystem::directory_iterator(); threads.increment(error)) {
      std::ifstream children(threads->path() / "children");
      for (pid_t child; children >> child;) {
        if (tree.insert(child).second) unvisited.push_back(child);
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

}  // namespace

uint64_t memory_of(const std::vector<pid_t>& roots, uint64_t enough) {
  struct Process {
    pid_t pid;
    uint64_t bytes;
  };
  std::vector<Process> processes;
  uint64_t at_most = 0;
  for (const pid_t pid : tree_of(roots)) {
    const uint64_t bytes = sum_of_lines(pid, "status", {"RssAnon:", "RssShmem:", "VmSwap:"}).value_or(0);
    processes.push_back({pid, bytes});
    at_most += bytes;
  }
  std::sort(processes.begin(), processes.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (const Process& process : processes) {
    if (at_most <= enough) break;
    const auto close = sum_of_lines(process.pid, "smaps_rollup", {"Pss_Anon:", "Pss_Shmem:", "SwapPss:"});
    // Where it cannot be read the quick figure stays, unless the process has just ended.
    if (!close && std::filesystem::exists(process_directory(process.pid) + "/status")) continue;
    at_most -= process.bytes - std::min(process.bytes, close.value_or(0));
  }
  return at_most;
}

bool descendants_are_told() { return std::filesystem::exists("/proc/thread-self/children"); }

}  // namespace kcoral::executor
