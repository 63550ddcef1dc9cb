#include "scheduler/lease_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace kcoral::scheduler {

LeaseTable::LeaseTable(const std::vector<int>& devices) {
  for (const int device : devices) devices_[device];
}

LeaseId LeaseTable::ask(Wanted wanted, SteadyTime now) {
  for (const int device : wanted.devices) KCORAL_CHECK(devices_.contains(device));
  KCORAL_CHECK(!wanted.devices.empty() || (wanted.count >= 1 && wanted.count <= devices_.size()));
  const LeaseId lease = next_++;
  waiting_.emplace(lease, Waiting{std::move(wanted), now});
  return lease;
}

std::vector<LeaseId> LeaseTable::in_order() const {
  std::vector<LeaseId> order;
  for (const auto& [lease, waiting] : waiting_) order.push_back(lease);  // as they were asked for
  std::stable_sort(order.begin(), order.end(), [this](LeaseId a, LeaseId b) {
    return waiting_.at(a).wanted.priority > waiting_.at(b).wanted.priority;
  });
  return order;
}

std::vector<LeaseTable::Grant> LeaseTable::grant(SteadyTime now) {
  std::vector<int> available;
  for (const auto& [id, device] : devices_) {
    if (device.use == DeviceUse::kFree && !device.quarantined_at) available.push_back(id);
  }
  std::vector<Grant> grants;
  if (available.empty() || waiting_.empty()) return grants;
  for (const LeaseId lease : in_order()) {
    const Waiting& waiting = waiting_.at(lease);
    if (!is_satisfiable(waiting.wanted)) continue;
    std::vector<int> chosen = choose(waiting.wanted, available);
    if (chosen.empty()) continue;
    for (const int device : chosen) hold(lease, device, now);
    grants.push_back({lease, chosen, now - waiting.since});
    held_.emplace(lease, std::move(chosen));
    waiting_.erase(lease);
  }
  return grants;
}

bool LeaseTable::is_satisfiable(const Wanted& wanted, SteadyTime since) const {
  const auto usable = std::count_if(devices_.begin(), devices_.end(), [&wanted, since](const auto& device) {
    return !is_out(device.second, since) && could_have(wanted, device.first);
  });
  return static_cast<size_t>(usable) >= wanted.needed();
}

bool LeaseTable::is_out(const Device& device, SteadyTime since) {
  return device.quarantined_at && *device.quarantined_at <= since;
}

std::vector<LeaseTable::Stranded> LeaseTable::stranded(SteadyTime since) const {
  std::vector<Stranded> found;
  for (const auto& [lease, waiting] : waiting_) {
    if (is_satisfiable(waiting.wanted, since)) continue;
    Stranded& stranded = found.emplace_back(Stranded{lease, {}});
    for (const auto& [id, device] : devices_) {
      if (is_out(device, since) && could_have(waiting.wanted, id)) stranded.devices.push_back(id);
    }
  }
  return found;
}

std::vector<int> LeaseTable::choose(const Wanted& wanted, std::vector<int>& available) const {
  std::vector<int> taken;
  const size_t needed = wanted.needed();
  for (const int device : available) {
    if (taken.size() < needed && could_have(wanted, device)) taken.push_back(device);
  }
  std::erase_if(available, [&](int device) { return std::find(taken.begin(), taken.end(), device) != taken.end(); });
  if (taken.size() < needed) taken.clear();
  return taken;
}

bool LeaseTable::could_have(const Wanted& wanted, int device) {
  const auto& exact = wanted.devices;
  return exact.empty() || std::find(exact.begin(), exact.end(), device) != exact.end();
}

void LeaseTable::hold(LeaseId lease, int id, SteadyTime now) {
  Device& device = devices_.at(id);
  if (std::exchange(device.was_wanted, false)) {
    ++device.handovers;
    device.idle_between += now - device.ended_at;
  }
  device.use = DeviceUse::kHeld;
  device.holder = lease;
}

std::vector<int> LeaseTable::end(LeaseId lease, bool clear, SteadyTime now) {
  waiting_.erase(lease);
  const auto held = held_.find(lease);
  if (held == held_.end()) return {};
  const std::vector<int> ended = std::move(held->second);
  held_.erase(held);
  for (const int id : ended) {
    Device& device = devices_.at(id);
    device.use = clear ? DeviceUse::kFree : DeviceUse::kClearing;
    if (clear) device.quarantined_at.reset();
    device.holder.reset();
    device.ended_at = now;
    device.was_wanted = std::any_of(waiting_.begin(), waiting_.end(),
                                    [id](const auto& each) { return could_have(each.second.wanted, id); });
  }
  return ended;
}

void LeaseTable::set_clear(int id) {
  Device& device = devices_.at(id);
  if (device.use != DeviceUse::kClearing) return;
  device.use = DeviceUse::kFree;
  device.quarantined_at.reset();
}

void LeaseTable::quarantine(int id, SteadyTime now) {
  Device& device = devices_.at(id);
  if (device.use != DeviceUse::kFree && !device.quarantined_at) device.quarantined_at = now;
}

std::vector<LeaseTable::DeviceView> LeaseTable::view() const {
  std::vector<DeviceView> views;
  for (const auto& [id, device] : devices_) {
    const auto waiters = std::count_if(waiting_.begin(), waiting_.end(),
                                       [id = id](const auto& each) { return could_have(each.second.wanted, id); });
    views.push_back({id, device.use, device.quarantined_at.has_value(), device.holder, static_cast<size_t>(waiters),
                     device.handovers, device.idle_between});
  }
  return views;
}

}  // namespace kcoral::scheduler
