#include "scheduler/roster.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace kcoral::scheduler {

void Roster::offer(const store::ExecutorRef& executor, const std::vector<int>& devices) {
  KCORAL_CHECK(std::is_sorted(devices.begin(), devices.end()));
  const MutexLock lock(mutex_);
  entries_[executor.name] = {executor, devices, Entry::Use::kIdle, ++offers_};
}

bool Roster::withdraw(const std::string& slot) {
  const MutexLock lock(mutex_);
  const auto entry = entries_.find(slot);
  return entry != entries_.end() && std::exchange(entry->second.use, Entry::Use::kNone) == Entry::Use::kIdle;
}

void Roster::set_unusable_devices(std::set<int> devices) {
  const MutexLock lock(mutex_);
  unusable_devices_ = std::move(devices);
}

bool Roster::is_usable(const Entry& entry) const {
  // The devices of a slot and these are both in order.
  return entry.devices.empty() ||
         !std::includes(unusable_devices_.begin(), unusable_devices_.end(), entry.devices.begin(), entry.devices.end());
}

size_t Roster::load(const Entry& entry) const {
  const auto shares_a_device = [&entry](const std::pair<const std::string, Entry>& each) {
    const auto& [use, theirs] = std::tie(each.second.use, each.second.devices);
    return (use == Entry::Use::kTaken || use == Entry::Use::kBusy) &&
           std::find_first_of(theirs.begin(), theirs.end(), entry.devices.begin(), entry.devices.end()) != theirs.end();
  };
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), shares_a_device));
}

std::optional<store::ExecutorRef> Roster::take(bool for_several_gpus) {
  const MutexLock lock(mutex_);
  Entry* best = nullptr;
  std::pair<size_t, int64_t> best_rank;
  for (auto& [name, entry] : entries_) {
    if (entry.use != Entry::Use::kIdle || (entry.devices.size() > 1) != for_several_gpus || !is_usable(entry)) continue;
    const std::pair rank(load(entry), order_ == Order::kLongestIdle ? entry.offered : -entry.offered);
    if (best == nullptr || rank < best_rank) std::tie(best, best_rank) = std::pair(&entry, rank);
  }
  if (best == nullptr) return std::nullopt;
  best->use = Entry::Use::kTaken;
  return best->executor;
}

void Roster::put_back(const store::ExecutorRef& executor) {
  {
    const MutexLock lock(mutex_);
    Entry& entry = entries_.at(executor.name);
    if (entry.use == Entry::Use::kTaken) {
      entry.use = Entry::Use::kIdle;
      return;
    }
  }
  on_claim_(executor.name, std::optional<store::Claim>());
}

void Roster::assign(const store::ExecutorRef& executor, Result<store::Claim> claim) {
  {
    const MutexLock lock(mutex_);
    Entry& entry = entries_.at(executor.name);
    if (entry.use == Entry::Use::kTaken) entry.use = claim ? Entry::Use::kBusy : Entry::Use::kNone;
  }
  if (!claim) return on_claim_(executor.name, fail(claim.error()));
  on_claim_(executor.name, std::optional<store::Claim>(std::move(*claim)));
}

}  // namespace kcoral::scheduler
