#include "scheduler/leases.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::scheduler {

// A device that is not clear after limits::kKillWait is called stuck; so long until nobody is expected to say so any
// more.
constexpr auto kAnswerWait = limits::kKillWait + std::chrono::seconds(10);
// Of a time stamp: nobody who reads an error cares for more.
constexpr size_t kWholeSeconds = std::string_view("2026-11-29T19:24:56").size();

Leases::Leases(std::vector<int> devices, devices::Clearance& clearance, EventLoop& loop, Owner owner)
    : clearance_(clearance), loop_(loop), owner_(std::move(owner)), table_(devices) {
  for (const int device : devices) since_[device] = loop_.clock().wall_now();
  update_view();
}

Leases::~Leases() {
  for (const auto& [device, timer] : unanswered_) loop_.cancel(timer);
  for (const auto& [device, trouble] : trouble_) loop_.cancel(trouble.grace_timer);
}

LeaseId Leases::ask(LeaseHolder holder, LeaseTable::Wanted wanted, Answers answers) {
  const LeaseId lease = table_.ask(std::move(wanted), loop_.clock().now());
  entries_.emplace(lease, Entry{std::move(holder), std::move(answers)});
  settle();
  return lease;
}

void Leases::end(LeaseId lease, bool processes_ended) {
  const SteadyTime now = loop_.clock().now();
  const std::vector<int> devices = table_.end(lease, !processes_ended, now);
  const auto ended = entries_.extract(lease);
  if (!ended.empty() && ended.mapped().granted_at && ended.mapped().holder.request_id) {
    held_.observe(now - *ended.mapped().granted_at);
  }
  for (const int device : devices) {
    if (!trouble_.contains(device)) since_[device] = loop_.clock().wall_now();
    if (processes_ended) {
      clear(device);
    } else {
      on_usable_again(device);
    }
  }
  settle();
}

void Leases::quarantine(LeaseId lease, const std::string& reason) {
  for (const LeaseTable::DeviceView& device : table_.view()) {
    if (device.holder == lease) quarantine(device.id, reason);
  }
}

/// One answer may lead to the next: whoever is told may end a lease at once.
void Leases::settle() {
  if (std::exchange(settling_, true)) return;
  while (grant_some() || deny_one()) {
  }
  settling_ = false;
  update_view();
}

bool Leases::grant_some() {
  const SteadyTime now = loop_.clock().now();
  const std::vector<LeaseTable::Grant> grants = table_.grant(now);
  for (const LeaseTable::Grant& grant : grants) {
    for (const int device : grant.devices) since_[device] = loop_.clock().wall_now();
    const auto entry = entries_.find(grant.lease);
    if (entry == entries_.end()) continue;
    entry->second.granted_at = now;
    if (entry->second.holder.request_id) waited_.observe(grant.waited);
    entry->second.answers.granted(grant.devices);
  }
  return !grants.empty();
}

bool Leases::deny_one() {
  if (trouble_.empty()) return false;
  const SteadyTime now = loop_.clock().now();
  for (const LeaseTable::Stranded& stranded : table_.stranded(now - limits::kQuarantineGrace)) {
    const auto entry = entries_.find(stranded.lease);
    if (entry == entries_.end() || !entry->second.answers.denied) continue;
    const Answers answers = std::move(entry->second.answers);
    entries_.erase(entry);
    table_.end(stranded.lease, /*clear=*/true, now);
    answers.denied(why_denied(stranded.devices));
    return true;
  }
  return false;
}

std::string Leases::why_denied(const std::vector<int>& devices) const {
  std::string why;
  for (const int device : devices) {
    const std::string since = rfc3339(since_.at(device)).substr(0, kWholeSeconds);
    why += fmt::format("GPU {} is quarantined since {}Z: {}; ", device, since, trouble_.at(device).reason);
  }
  why += devices.size() == 1 ? "it may come back by itself" : "they may come back by themselves";
  return why + " (GET /gpus shows it): send the program again";
}

void Leases::clear(int device) {
  const auto on_loop = [this, alive = std::weak_ptr<const bool>(alive_)](std::function<void()> function) {
    loop_.post([alive, function = std::move(function)] {
      if (!alive.expired()) function();
    });
  };
  // Whoever looks waits for the driver, which may not answer.
  stop_waiting(device);
  unanswered_[device] = loop_.run_after(kAnswerWait, [this, device] {
    unanswered_.erase(device);
    quarantine(device, "the NVIDIA driver does not answer");
  });
  clearance_.when_clear(device, owner_.executors(),
                        {[this, device, on_loop] { on_loop([this, device] { on_cleared(device); }); },
                         [this, device, on_loop](std::string reason) {
                           on_loop([this, device, reason = std::move(reason)] {
                             stop_waiting(device);
                             quarantine(device, reason);
                           });
                         }});
}

void Leases::stop_waiting(int device) {
  const auto timer = unanswered_.find(device);
  if (timer == unanswered_.end()) return;
  loop_.cancel(timer->second);
  unanswered_.erase(timer);
}

void Leases::on_cleared(int device) {
  stop_waiting(device);
  table_.set_clear(device);
  on_usable_again(device);
  settle();
}

void Leases::on_usable_again(int device) {
  const auto trouble = trouble_.find(device);
  if (trouble == trouble_.end()) return;
  loop_.cancel(trouble->second.grace_timer);
  trouble_.erase(trouble);
  spdlog::warn("GPU {} is back", device);
  since_[device] = loop_.clock().wall_now();
  tell_quarantined();
}

void Leases::quarantine(int device, const std::string& reason) {
  spdlog::error("GPU {} is quarantined: {}", device, reason);
  const auto [trouble, is_new] = trouble_.try_emplace(device);
  trouble->second.reason = reason;
  const SteadyTime now = loop_.clock().now();  // one moment: what the timer does depends on it
  table_.quarantine(device, now);
  if (is_new) {
    since_[device] = loop_.clock().wall_now();
    trouble->second.grace_timer = loop_.run_at(now + limits::kQuarantineGrace, [this] { settle(); });
  }
  tell_quarantined();
  settle();
}

void Leases::tell_quarantined() {
  std::set<int> quarantined;
  for (const auto& [device, trouble] : trouble_) quarantined.insert(device);
  owner_.on_quarantined(std::move(quarantined));
}

std::optional<Quarantine> Leases::quarantine_of(int device) const {
  const auto trouble = trouble_.find(device);
  if (trouble == trouble_.end()) return std::nullopt;
  return Quarantine{since_.at(device), trouble->second.reason};
}

void Leases::update_view() {
  std::vector<DeviceView> views;
  for (LeaseTable::DeviceView& table : table_.view()) {
    DeviceView view{std::move(table), {}, since_[table.id], {}};
    if (view.table.holder) {
      if (const auto entry = entries_.find(*view.table.holder); entry != entries_.end()) {
        view.holder = entry->second.holder;
      }
    }
    if (const auto trouble = trouble_.find(view.table.id); trouble != trouble_.end())
      view.trouble = trouble->second.reason;
    views.push_back(std::move(view));
  }
  const MutexLock lock(view_mutex_);
  view_ = std::move(views);
}

std::vector<Leases::DeviceView> Leases::view() const {
  const MutexLock lock(view_mutex_);
  return view_;
}

}  // namespace kcoral::scheduler
