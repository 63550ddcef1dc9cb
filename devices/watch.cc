#include "devices/watch.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/log.h"

namespace kcoral::devices {
namespace {

constexpr std::chrono::milliseconds kPauseMin{1};
// Fragments and the driver's own book-keeping come and go; a program's leak that hurts the next one is larger.
constexpr uint64_t kMissingBytesMax = uint64_t{512} << 20;

/// A line of /proc/PID/status without its name; empty when there is no such process.
std::string status_of(const std::string& pid, std::string_view name) {
  std::ifstream status("/proc/" + pid + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return line.substr(name.size());
  }
  return "";
}

pid_t parent_of(pid_t pid) { return std::atoi(status_of(std::to_string(pid), "PPid:").c_str()); }

/// In how many pid namespaces a process has a number; 0 when there is no such process.
size_t namespaces_of(const std::string& pid) {
  std::istringstream numbers(status_of(pid, "NSpid:"));
  return static_cast<size_t>(std::distance(std::istream_iterator<pid_t>(numbers), std::istream_iterator<pid_t>()));
}

/// Programs live in pid namespaces below the server's own; whoever lives beside the server is none of them.
bool is_somebody_elses(pid_t pid) {
  const size_t depth = namespaces_of(std::to_string(pid));
  return depth > 0 && depth <= namespaces_of("self");
}

/// Whether `pid` is one of `ancestors` or descends from one, as /proc shows it now.
bool descends_from(pid_t pid, const std::vector<pid_t>& ancestors) {
  for (; pid > 1; pid = parent_of(pid)) {
    if (std::find(ancestors.begin(), ancestors.end(), pid) != ancestors.end()) return true;
  }
  return false;
}

}  // namespace

Watch::Watch(const Devices& devices, std::vector<int> looked_at, WatchPace pace) : devices_(devices), pace_(pace) {
  for (const int device : looked_at) {
    const auto state = devices_.look(device);
    unused_bytes_[device] = state ? std::optional(state->memory_used_bytes) : std::nullopt;
    if (state) states_[device] = *state;
  }
  thread_ = std::thread([this] { run(); });
}

void Watch::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Watch::when_clear(int device, std::vector<pid_t> executors, Handlers handlers) {
  const MutexLock lock(mutex_);
  arrived_.push_back({device, std::move(executors), std::move(handlers), Clock::system().now() + pace_.stuck_after,
                      SteadyTime{}, kPauseMin, false});
  changed_.notify_one();
}

std::optional<DeviceState> Watch::state(int device) const {
  const MutexLock lock(mutex_);
  const auto found = states_.find(device);
  return found == states_.end() ? std::nullopt : std::optional(found->second);
}

void Watch::run() {
  Clock& clock = Clock::system();
  for (;;) {
    {
      const MutexLock lock(mutex_);
      SteadyTime next = next_round_;
      for (const Clearing& each : clearing_) next = std::min(next, each.next_look);
      while (!stopping_ && arrived_.empty() && clock.now() < next) {
        if (!changed_.wait_until(mutex_, next)) break;
      }
      if (stopping_) return;
      clearing_.splice(clearing_.end(), arrived_);
    }
    for (auto each = clearing_.begin(); each != clearing_.end();) {
      if (each->next_look <= clock.now()) look_at(*each);
      each = each->handlers.cleared == nullptr ? clearing_.erase(each) : std::next(each);
    }
    if (next_round_ <= clock.now()) look_at_all();
  }
}

void Watch::look_at_all() {
  next_round_ = Clock::system().now() + pace_.round;
  for (const auto& [device, ignored] : unused_bytes_) {
    auto state = devices_.look(device);
    const MutexLock lock(mutex_);
    if (state) {
      states_[device] = std::move(*state);
    } else {
      states_.erase(device);
    }
  }
}

void Watch::look_at(Clearing& clearing) {
  const std::string remains = what_remains(clearing);
  if (remains.empty()) return std::exchange(clearing.handlers.cleared, nullptr)();
  const SteadyTime now = Clock::system().now();
  if (!clearing.is_stuck && now >= clearing.stuck_at) {
    clearing.is_stuck = true;
    clearing.handlers.stuck(remains);
  }
  clearing.pause = clearing.is_stuck ? pace_.pause_stuck : std::min(clearing.pause * 2, pace_.pause_max);
  clearing.next_look = now + clearing.pause;
}

std::string Watch::what_remains(const Clearing& clearing) {
  const auto state = devices_.look(clearing.device);
  if (!state) return state.error().message;
  const std::optional<uint64_t>& unused = unused_bytes_[clearing.device];
  uint64_t accounted = unused.value_or(0);
  bool all_known = unused.has_value();
  for (const DeviceProcess& process : state->processes) {
    if (!descends_from(process.pid, clearing.executors) && !is_somebody_elses(process.pid)) {
      return fmt::format("process {} still uses it", process.pid);
    }
    all_known = all_known && process.memory_bytes.has_value();
    accounted += process.memory_bytes.value_or(0);
  }
  if (!all_known || state->memory_used_bytes <= accounted + kMissingBytesMax) return "";
  return fmt::format("{} MiB of its memory are in use, and no process has them",
                     (state->memory_used_bytes - accounted) >> 20);
}

}  // namespace kcoral::devices
