#include "scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/log.h"

namespace kcoral::scheduler {

// After the store failed to answer a claim (a full disk, say): often enough to go on soon, seldom enough not to spin.
constexpr auto kClaimRetry = std::chrono::seconds(1);

Scheduler::Scheduler(std::vector<std::unique_ptr<executor::Executor>> executors, store::Store& store, EventLoop& loop,
                     SchedulerConfig config)
    : store_(store), loop_(loop) {
  KCORAL_CHECK(!executors.empty());
  KCORAL_CHECK(config.devices.empty() || config.clearance != nullptr);
  if (!config.devices.empty()) {
    const auto executor_pids = [this] {
      std::vector<pid_t> pids;
      for (const auto& slot : slots_) {
        if (const int pid = slot->executor_pid(); pid > 0) pids.push_back(pid);
      }
      return pids;
    };
    leases_ = std::make_unique<Leases>(std::move(config.devices), *config.clearance, loop, executor_pids, [this] {
      if (started_) dispatch();
    });
  }
  for (auto& executor : executors) {
    slots_.push_back(
        std::make_unique<Slot>(std::move(executor), store, loop, *this, leases_.get(), config.response_bytes_max));
  }
  update_capacity();
  store_.set_work_listener([this] {
    loop_.post([this] {
      dry_.clear();
      if (started_) dispatch();
    });
  });
}

void Scheduler::start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  for (auto& slot : slots_) slot->start();
}

void Scheduler::drain(std::chrono::milliseconds grace, std::function<void()> drained) {
  draining_ = true;
  drained_ = std::move(drained);
  loop_.run_after(grace, [this] {
    for (auto& slot : slots_) slot->give_up("the server was stopped while it ran");
  });
  check_drained();
}

Scheduler::Capacity Scheduler::capacity() const {
  const MutexLock lock(capacity_mutex_);
  return capacity_;
}

void Scheduler::update_capacity() {
  Capacity capacity;
  for (const auto& slot : slots_) {
    if (slot->state() == Slot::State::kQuarantined) {
      capacity.quarantined.push_back({slot->name(), slot->quarantine()});
    } else if (slot->state() != Slot::State::kBroken) {
      ++capacity.slots;
    }
  }
  const MutexLock lock(capacity_mutex_);
  capacity_ = std::move(capacity);
}

void Scheduler::on_slot_changed() {
  update_capacity();
  report_ready_once();
  if (draining_) return check_drained();
  if (started_) dispatch();
}

std::vector<Leases::DeviceView> Scheduler::devices() const {
  return leases_ ? leases_->view() : std::vector<Leases::DeviceView>();
}

void Scheduler::on_devices_taken(const Slot& by, const std::vector<int>& devices, const Uuid& request_id) {
  for (const auto& slot : slots_) {
    if (slot.get() != &by) slot->note_devices_taken(devices, request_id);
  }
}

void Scheduler::on_slot_broken(const std::string& slot, const std::string& reason) {
  spdlog::error("{} is given up: {}", slot, reason);
  const bool all_broken =
      std::all_of(slots_.begin(), slots_.end(), [](const auto& each) { return each->state() == Slot::State::kBroken; });
  if (!started_ || all_broken) report_unable_once({ErrorKind::kEnvironment, reason});
}

void Scheduler::report_unable_once(Error error) {
  if (callbacks_.on_unable) std::exchange(callbacks_.on_unable, nullptr)(std::move(error));
}

void Scheduler::report_ready_once() {
  if (started_) return;
  const bool all_idle =
      std::all_of(slots_.begin(), slots_.end(), [](const auto& slot) { return slot->state() == Slot::State::kIdle; });
  if (!all_idle) return;
  started_ = true;
  callbacks_.on_ready(slots_.front()->info());
}

void Scheduler::dispatch() {
  if (draining_) return;
  const uint64_t queued = store_.counts().queued;
  // A claim that is on its way takes one of the queued requests.
  while (claims_pending_ < queued) {
    Slot* slot = next_idle();
    if (slot == nullptr) return;
    claim_for(*slot);
  }
}

Slot* Scheduler::next_idle() const {
  std::map<int, size_t> at_work;  // on each device
  bool is_any_in_use = false;
  for (const auto& slot : slots_) {
    const bool works = slot->is_claiming() || slot->state() == Slot::State::kRunning;
    for (const int device : slot->devices()) {
      at_work[device] += works ? 1 : 0;
      is_any_in_use = is_any_in_use || !leases_->is_quarantined(device);
    }
  }
  Slot* next = nullptr;
  size_t fewest = 0;
  for (const auto& slot : slots_) {
    if (dry_.contains(slot->has_several_gpus())) continue;
    if (slot->state() != Slot::State::kIdle || slot->is_claiming()) continue;
    const std::vector<int>& devices = slot->devices();
    if (devices.size() == 1 && is_any_in_use && leases_->is_quarantined(devices.front())) continue;
    size_t most = 0;
    for (const int device : devices) most = std::max(most, at_work[device]);
    if (next != nullptr && most >= fewest) continue;
    next = slot.get();
    fewest = most;
  }
  return next;
}

void Scheduler::claim_for(Slot& slot) {
  slot.begin_claim();
  ++claims_pending_;
  store_.claim(
      {slot.name(), slot.executor_pid(), slot.has_several_gpus()},
      [this, &slot](Result<std::optional<store::Claim>> result) {
        loop_.post([this, &slot, result = std::move(result)]() mutable { on_claim_result(slot, std::move(result)); });
      });
}

void Scheduler::on_claim_result(Slot& slot, Result<std::optional<store::Claim>> result) {
  --claims_pending_;
  const bool found_none = result && !*result;
  // What has arrived since is announced after this.
  if (found_none) dry_.insert(slot.has_several_gpus());
  slot.end_claim(result ? std::move(*result) : std::nullopt);
  if (draining_) return check_drained();
  if (!result) {
    spdlog::error("cannot take a request from the queue: {}", result.error().message);
    if (!std::exchange(retry_armed_, true)) {
      loop_.run_after(kClaimRetry, [this] {
        retry_armed_ = false;
        dispatch();
      });
    }
    return;
  }
  dispatch();
}

void Scheduler::check_drained() {
  if (!drained_ || claims_pending_ > 0) return;
  for (const auto& slot : slots_) {
    if (slot->state() == Slot::State::kRunning || slot->commits_pending() > 0) return;
  }
  // Not from inside a slot's own callback: whoever drains may take the scheduler down.
  loop_.post(std::exchange(drained_, nullptr));
}

}  // namespace kcoral::scheduler
