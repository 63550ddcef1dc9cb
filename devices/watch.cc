#include "devices/watch.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/log.h"

namespace kcoral::devices {
namespace {

constexpr auto kRound = std::chrono::seconds(1);
// For a look that is under way. A driver that does not answer within that may never.
constexpr auto kStopWait = std::chrono::seconds(5);

std::vector<int> ids_of(const std::map<int, DeviceState>& states) {
  std::vector<int> ids;
  for (const auto& [device, ignored] : states) ids.push_back(device);
  return ids;
}

/// Of each device, what no process has.
std::map<int, uint64_t> unused_bytes(const std::map<int, DeviceState>& states) {
  std::map<int, uint64_t> unused;
  for (const auto& [device, state] : states) {
    uint64_t bytes = state.memory_used_bytes;
    for (const DeviceProcess& process : state.processes) bytes -= std::min(bytes, process.memory_bytes.value_or(0));
    unused[device] = bytes;
  }
  return unused;
}

}  // namespace

Result<std::unique_ptr<Watch>> Watch::create(const Devices& devices, const std::vector<int>& looked_at,
                                             const ProcessTable& processes) {
  std::map<int, DeviceState> states;
  for (const int device : looked_at) {
    auto state = devices.look(device);
    if (!state) return fail(state.error().kind, "GPU {}: {}", device, state.error().message);
    states.emplace(device, std::move(*state));
  }
  auto watch = std::unique_ptr<Watch>(new Watch(devices, std::move(states), processes));
  watch->thread_ = std::thread([&it = *watch] {
    it.run();
    const MutexLock lock(it.mutex_);
    it.has_ended_ = true;
    it.changed_.notify_all();
  });
  return watch;
}

Watch::Watch(const Devices& devices, std::map<int, DeviceState> states, const ProcessTable& processes)
    : devices_(devices),
      looked_at_(ids_of(states)),
      clearings_(devices, unused_bytes(states), clock_, processes),
      states_(std::move(states)) {}

void Watch::stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    const SteadyTime end = clock_.now() + kStopWait;
    while (!has_ended_ && changed_.wait_until(mutex_, end)) {
    }
    if (!has_ended_) {
      spdlog::critical("the NVIDIA driver does not answer, and the process ends without waiting for it");
      spdlog::default_logger()->flush();
      std::_Exit(EXIT_FAILURE);
    }
  }
  thread_.join();
}

void Watch::when_clear(int device, std::vector<pid_t> executors, Handlers handlers) {
  const MutexLock lock(mutex_);
  arrived_.push_back({device, std::move(executors), std::move(handlers)});
  changed_.notify_one();
}

std::optional<DeviceState> Watch::state(int device) const {
  const MutexLock lock(mutex_);
  const auto found = states_.find(device);
  return found == states_.end() ? std::nullopt : std::optional(found->second);
}

void Watch::run() {
  SteadyTime next_round = clock_.now() + kRound;
  for (std::vector<Arrived> arrived;; arrived.clear()) {
    if (!wait_until(std::min(next_round, clearings_.next().value_or(next_round)), arrived)) return;
    for (Arrived& each : arrived) clearings_.add(each.device, std::move(each.executors), std::move(each.handlers));
    clearings_.look();
    if (clock_.now() < next_round) continue;
    next_round = clock_.now() + kRound;
    look_at_all();
  }
}

bool Watch::wait_until(SteadyTime next, std::vector<Arrived>& arrived) {
  const MutexLock lock(mutex_);
  while (!stopping_ && arrived_.empty() && clock_.now() < next) {
    if (!changed_.wait_until(mutex_, next)) break;
  }
  arrived.swap(arrived_);
  return !stopping_;
}

void Watch::look_at_all() {
  for (const int device : looked_at_) {
    auto state = devices_.look(device);
    const MutexLock lock(mutex_);
    if (state) {
      states_[device] = std::move(*state);
    } else {
      states_.erase(device);
    }
  }
}

}  // namespace kcoral::devices
