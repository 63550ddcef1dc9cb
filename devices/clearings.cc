#include "devices/clearings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "schema/limits.h"

namespace kcoral::devices {
namespace {

// Most devices are clear at the first look; one that is not is being left, which takes a context 60 to 150 ms.
constexpr std::chrono::milliseconds kPauseMin{1}, kPauseMax{50}, kPauseStuck{1000};
// Fragments and the driver's own book-keeping come and go; a program's leak that hurts the next one is larger.
constexpr uint64_t kMissingBytesMax = 512 * limits::kMiB;
// The pid namespaces between the server and a program: bubblewrap's, the zygote's and its own.
constexpr size_t kProgramDepth = 3;
// What the kernel calls an executor: the name of its file.
constexpr std::string_view kExecutorName = "kcoral-executor";

}  // namespace

Clearings::Clearings(const Devices& devices, std::map<int, uint64_t> unused_bytes, const Clock& clock,
                     const ProcessTable& processes)
    : devices_(devices), unused_bytes_(std::move(unused_bytes)), clock_(clock), processes_(processes) {}

void Clearings::add(int device, std::vector<pid_t> executors, Clearance::Handlers handlers) {
  KCORAL_CHECK(unused_bytes_.contains(device) && handlers.cleared != nullptr);
  const SteadyTime now = clock_.now();
  clearing_.push_back(
      {device, std::move(executors), std::move(handlers), now + limits::kKillWait, now, kPauseMin, false});
}

void Clearings::look() {
  for (auto each = clearing_.begin(); each != clearing_.end();) {
    if (each->next_look <= clock_.now()) look_at(*each);
    each = each->handlers.cleared == nullptr ? clearing_.erase(each) : std::next(each);
  }
}

std::optional<SteadyTime> Clearings::next() const {
  std::optional<SteadyTime> next;
  for (const Clearing& each : clearing_) next = std::min(next.value_or(each.next_look), each.next_look);
  return next;
}

void Clearings::look_at(Clearing& clearing) {
  const std::string remains = what_remains(clearing);
  if (remains.empty()) return std::exchange(clearing.handlers.cleared, nullptr)();
  const SteadyTime now = clock_.now();
  if (!clearing.is_stuck && now >= clearing.stuck_at) {
    clearing.is_stuck = true;
    clearing.handlers.stuck(remains);
  }
  clearing.next_look = now + (clearing.is_stuck ? kPauseStuck : clearing.pause);
  clearing.pause = std::min(clearing.pause * 2, kPauseMax);
}

std::string Clearings::what_remains(const Clearing& clearing) const {
  const auto state = devices_.look(clearing.device);
  if (!state) return state.error().message;
  std::string remains = look_for_processes(state->processes, clearing.executors);
  return remains.empty() ? look_for_missing_memory(clearing.device, *state) : remains;
}

std::string Clearings::look_for_processes(const std::vector<DeviceProcess>& processes,
                                          const std::vector<pid_t>& executors) const {
  bool all_known = true;
  for (const DeviceProcess& process : processes) {
    const Owner owner = owner_of(process.pid, executors);
    if (owner == Owner::kEndedProgram) return fmt::format("process {} still uses it", process.pid);
    all_known = all_known && owner != Owner::kUnknown;
  }
  if (all_known) return "";
  // The driver speaks of numbers that mean nothing here. Whose processes these are is not known, but if all that ever
  // ran a program here is either gone or lives under its executor, none of them is left behind.
  const auto abandoned = find_abandoned();
  return abandoned ? fmt::format("process {} of an ended program is still there, and may use it", *abandoned) : "";
}

std::string Clearings::look_for_missing_memory(int device, const DeviceState& state) const {
  uint64_t accounted = unused_bytes_.at(device);
  for (const DeviceProcess& process : state.processes) {
    if (!process.memory_bytes) return "";  // then nobody can tell
    accounted += *process.memory_bytes;
  }
  if (state.memory_used_bytes <= accounted + kMissingBytesMax) return "";
  return fmt::format("{} MiB of its memory are in use, and no process has them",
                     (state.memory_used_bytes - accounted) / limits::kMiB);
}

Clearings::Owner Clearings::owner_of(pid_t pid, const std::vector<pid_t>& executors) const {
  const auto process = processes_.find(pid);
  // Where the table is the whole machine's, it ended just now, and the driver has not forgotten it yet.
  if (!process) return processes_.is_whole_machine() ? Owner::kEndedProgram : Owner::kUnknown;
  if (!lives_where_programs_do(*process)) return Owner::kSomebodyElse;
  for (auto ancestor = process; ancestor; pid = ancestor->parent, ancestor = processes_.find(pid)) {
    if (std::find(executors.begin(), executors.end(), pid) != executors.end()) return Owner::kLivingExecutor;
  }
  return Owner::kEndedProgram;
}

/// Others may live in pid namespaces, too (a container, a browser's sandbox), but hardly so deep.
bool Clearings::lives_where_programs_do(const ProcessTable::Process& process) const {
  return process.depth >= processes_.own_depth() + kProgramDepth;
}

std::optional<pid_t> Clearings::find_abandoned() const {
  for (const pid_t pid : processes_.list()) {
    const auto process = processes_.find(pid);
    if (process && is_abandoned(*process)) return pid;
  }
  return std::nullopt;
}

/// It lives where programs do, and no executor is above it. By their name, since executors may have been started again
/// since: they are what lives beside the server, so no program can pretend to be one.
bool Clearings::is_abandoned(const ProcessTable::Process& process) const {
  if (!lives_where_programs_do(process) || process.has_ended) return false;
  const size_t own_depth = processes_.own_depth();
  for (auto ancestor = processes_.find(process.parent); ancestor; ancestor = processes_.find(ancestor->parent)) {
    if (ancestor->depth <= own_depth && ancestor->name == kExecutorName) return false;
  }
  return true;
}

}  // namespace kcoral::devices
