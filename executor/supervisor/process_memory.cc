#include "executor/supervisor/process_memory.h"

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

namespace kcoral::executor {
namespace {

constexpr uint64_t kKiB = 1024;

std::string process_directory(pid_t pid) { return "/proc/" + std::to_string(pid); }

/// `roots` and their descendants; see proc_pid_task(5), "children".
std::vector<pid_t> tree_of(const std::vector<pid_t>& roots) {
  std::vector<pid_t> tree = roots;
  for (size_t next = 0; next < tree.size(); ++next) {
    std::error_code error;
    std::filesystem::directory_iterator threads(process_directory(tree[next]) + "/task", error);
    for (; !error && threads != std::filesystem::directory_iterator(); threads.increment(error)) {
      std::ifstream children(threads->path() / "children");
      for (pid_t child; children >> child;) tree.push_back(child);
    }
  }
  return tree;
}

/// The sum of lines like "RssAnon:     1234 kB" in a file of a process's directory.
uint64_t sum_of_lines(pid_t pid, const char* file, std::initializer_list<std::string_view> names) {
  std::ifstream lines(process_directory(pid) + "/" + file);
  uint64_t bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    for (const std::string_view name : names) {
      if (line.starts_with(name)) bytes += std::stoull(line.substr(name.size())) * kKiB;
    }
  }
  return bytes;
}

}  // namespace

uint64_t memory_of(const std::vector<pid_t>& roots, uint64_t enough) {
  const std::vector<pid_t> tree = tree_of(roots);
  uint64_t quick = 0;
  for (const pid_t pid : tree) quick += sum_of_lines(pid, "status", {"RssAnon:", "RssShmem:"});
  if (quick <= enough) return quick;
  uint64_t close = 0;
  for (const pid_t pid : tree) close += sum_of_lines(pid, "smaps_rollup", {"Pss_Anon:", "Pss_Shmem:"});
  return close;
}

}  // namespace kcoral::executor
