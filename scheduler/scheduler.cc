#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace kcoral::scheduler {

// After the store could give a slot nothing (a full disk, say): often enough to go on soon, seldom enough not to spin.
constexpr auto kClaimRetry = std::chrono::seconds(1);

Scheduler::Scheduler(std::vector<std::unique_ptr<executor::Executor>> executors, store::Store& store, EventLoop& loop,
                     SchedulerConfig config)
    : store_(store),
      loop_(loop),
      roster_(
          config.order,
          [this](const std::string& slot, Result<std::optional<store::Claim>> claim) {
            loop_.post([this, slot, claim = std::move(claim)]() mutable { on_claim(slot, std::move(claim)); });
          },
          [this](const store::Fence& fence) {
            // Behind the claim, which its slot has by then, or has given back.
            loop_.post([this, fence] {
              for (auto& each : slots_) each->cancel(fence);
            });
          }) {
  KCORAL_CHECK(!executors.empty());
  KCORAL_CHECK(config.devices.empty() || config.clearance != nullptr);
  if (!config.devices.empty()) {
    leases_ = std::make_unique<Leases>(std::move(config.devices), *config.clearance, loop,
                                       Leases::Owner{[this] { return executor_pids(); },
                                                     [this](std::set<int> devices) {
                                                       update_capacity();
                                                       roster_.set_unusable_devices(std::move(devices));
                                                       store_.executor_became_idle();
                                                     }});
  }
  for (auto& executor : executors) {
    slots_.push_back(
        std::make_unique<Slot>(std::move(executor), store, loop, *this, leases_.get(), config.response_bytes_max));
  }
  update_capacity();
}

std::vector<pid_t> Scheduler::executor_pids() const {
  std::vector<pid_t> pids;
  for (const auto& slot : slots_) {
    if (const int pid = slot->executor_pid(); pid > 0) pids.push_back(pid);
  }
  return pids;
}

void Scheduler::start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  for (auto& slot : slots_) slot->start();
}

void Scheduler::drain(std::chrono::milliseconds grace, std::function<void()> drained) {
  draining_ = true;
  drained_ = std::move(drained);
  for (auto& slot : slots_) withdraw(*slot);
  loop_.run_after(grace, [this] {
    for (auto& slot : slots_) slot->give_up("the server was stopped while it ran");
  });
  check_drained();
}

Scheduler::Capacity Scheduler::capacity() const {
  const MutexLock lock(capacity_mutex_);
  return capacity_;
}

std::optional<Quarantine> Scheduler::gpu_quarantine(const Slot& slot) const {
  if (!leases_ || slot.devices().size() != 1) return std::nullopt;
  const int device = slot.devices().front();
  auto quarantine = leases_->quarantine_of(device);
  if (quarantine) quarantine->reason = fmt::format("GPU {} is quarantined: {}", device, quarantine->reason);
  return quarantine;
}

void Scheduler::update_capacity() {
  Capacity capacity;
  for (const auto& slot : slots_) {
    if (slot->state() == Slot::State::kQuarantined) {
      capacity.quarantined.push_back({slot->name(), slot->quarantine()});
    } else if (auto quarantine = gpu_quarantine(*slot)) {
      capacity.quarantined.push_back({slot->name(), std::move(*quarantine)});
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
  for (auto& slot : slots_) {
    if (slot->state() == Slot::State::kStarting || slot->state() == Slot::State::kBroken) withdraw(*slot);
  }
  if (draining_) return check_drained();
  offer_idle_slots();
}

std::vector<std::pair<std::string_view, size_t>> Scheduler::executor_states() const {
  using State = Slot::State;
  constexpr std::pair<State, std::string_view> kNames[] = {
      {State::kStarting, "starting"},       {State::kIdle, "idle"},
      {State::kRunning, "running"},         {State::kClearing, "clearing"},
      {State::kQuarantined, "quarantined"}, {State::kBroken, "broken"},
  };
  std::vector<State> states;  // each slot's once: it may change meanwhile, and is counted once
  for (const auto& slot : slots_) states.push_back(slot->state());
  std::vector<std::pair<std::string_view, size_t>> counts;
  for (const auto& [state, name] : kNames) {
    counts.emplace_back(name, static_cast<size_t>(std::count(states.begin(), states.end(), state)));
  }
  return counts;
}

std::vector<Leases::DeviceView> Scheduler::devices() const {
  return leases_ ? leases_->view() : std::vector<Leases::DeviceView>();
}

std::optional<Leases::Figures> Scheduler::lease_figures() const {
  return leases_ ? std::optional(leases_->figures()) : std::nullopt;
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
  store_.serve(roster_);
}

void Scheduler::offer_idle_slots() {
  if (!started_ || draining_) return;
  for (auto& slot : slots_) {
    if (slot->state() != Slot::State::kIdle || slot->is_claiming() || pausing_.contains(slot->name())) continue;
    slot->begin_claim();
    roster_.offer({slot->name(), slot->executor_pid()}, slot->devices());
    store_.executor_became_idle();
  }
}

void Scheduler::withdraw(Slot& slot) {
  if (roster_.withdraw(slot.name())) slot.end_claim(std::nullopt);
}

void Scheduler::on_claim(const std::string& name, Result<std::optional<store::Claim>> claim) {
  Slot& slot = **std::find_if(slots_.begin(), slots_.end(), [&name](const auto& each) { return each->name() == name; });
  if (!claim) {
    spdlog::error("{} could be given no request: {}", name, claim.error().message);
    pausing_.insert(name);
    loop_.run_after(kClaimRetry, [this, name] {
      pausing_.erase(name);
      offer_idle_slots();
      // Also if this slot is lost by now: the store waits for somebody to say so before it tries again.
      store_.executor_became_idle();
    });
  }
  slot.end_claim(claim ? std::move(*claim) : std::nullopt);
  if (draining_) return check_drained();
  offer_idle_slots();
}

void Scheduler::check_drained() {
  if (!drained_) return;
  for (const auto& slot : slots_) {
    if (slot->is_claiming() || slot->state() == Slot::State::kRunning || slot->commits_pending() > 0) return;
  }
  // Not from inside a slot's own callback: whoever drains may take the scheduler down.
  loop_.post(std::exchange(drained_, nullptr));
}

}  // namespace kcoral::scheduler
