#include "devices/process_table.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace kcoral::devices {
namespace {

// The kernel's PROC_PID_INIT_INO, which its interface with programs that save and restore processes keeps as it is.
constexpr std::string_view kFirstPidNamespace = "pid:[4026531836]";

class SystemTable final : public ProcessTable {
 public:
  std::optional<Process> find(pid_t pid) const override { return read(std::to_string(pid)); }

  std::vector<pid_t> list() const override {
    std::vector<pid_t> pids;
    std::error_code error;
    for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename();
      pid_t pid = 0;
      const auto [rest, wrong] = std::from_chars(name.data(), name.data() + name.size(), pid);
      if (wrong == std::errc() && rest == name.data() + name.size()) pids.push_back(pid);
    }
    return pids;
  }

  size_t own_depth() const override { return own_depth_; }
  bool is_whole_machine() const override { return is_whole_machine_; }

 private:
  static size_t read_own_depth() {
    const auto self = read("self");
    return self ? self->depth : 1;
  }

  static bool look_for_whole_machine() {
    std::array<char, 64> text{};
    const ssize_t size = ::readlink("/proc/self/ns/pid", text.data(), text.size());
    return size > 0 && std::string_view(text.data(), static_cast<size_t>(size)) == kFirstPidNamespace;
  }

  static std::optional<Process> read(const std::string& entry) {
    std::ifstream status("/proc/" + entry + "/status");
    Process process;
    bool is_zombie = false;
    for (std::string line; std::getline(status, line);) {
      const size_t colon = line.find(":\t");
      if (colon == std::string::npos) continue;
      const std::string_view field = std::string_view(line).substr(0, colon);
      const std::string value = line.substr(colon + 2);
      if (field == "Name") process.name = value;
      if (field == "State") is_zombie = value.starts_with('Z') || value.starts_with('X');
      if (field == "PPid") process.parent = std::atoi(value.c_str());
      if (field == "NSpid") {
        std::istringstream numbers(value);
        process.depth = static_cast<size_t>(std::distance(std::istream_iterator<pid_t>(numbers), {}));
      }
      if (field != "Threads") continue;
      // The last of what is needed. Where the first thread alone has ended, the others count.
      process.has_ended = is_zombie && std::atoi(value.c_str()) <= 1;
      return process;
    }
    return std::nullopt;
  }

  // A process stays in the pid namespace in which it began.
  const size_t own_depth_ = read_own_depth();
  const bool is_whole_machine_ = look_for_whole_machine();
};

}  // namespace

const ProcessTable& ProcessTable::system() {
  static const SystemTable table;
  return table;
}

}  // namespace kcoral::devices
