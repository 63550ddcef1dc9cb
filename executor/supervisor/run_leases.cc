#include "executor/supervisor/run_leases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schema/limits.h"

namespace kcoral::executor {

RunLeases::RunLeases(EventLoop& loop, DeviceLeases& leases, LeaseTerms terms, Handlers handlers)
    : loop_(loop), leases_(leases), terms_(std::move(terms)), handlers_(std::move(handlers)) {}

RunLeases::~RunLeases() { stop_waiting(); }

void RunLeases::ask() {
  KCORAL_CHECK(terms_.count > 0 && !lease_);
  timer_ = loop_.run_after(terms_.wait_max, [this] { on_wait_over(); });
  // Where what it leases is all that the slot has, that is meant from the beginning.
  const bool is_any = devices_.empty() && terms_.count < terms_.slot_devices.size();
  lease_ = leases_.ask(
      {.priority = terms_.priority, .devices = is_any ? std::vector<int>() : known_devices(), .count = terms_.count},
      {[this] { on_granted(); }, [this](std::string why) { on_denied(std::move(why)); }});
}

void RunLeases::on_granted() {
  if (!stop_waiting()) return;  // the program goes on no more
  devices_ = lease_->devices();
  nlohmann::ordered_json record{
      {"event", "lease_granted"}, {"device", devices_}, {"waited_ms", to_ms(lease_->waited())}};
  if (devices_.size() == 1) record["device"] = devices_.front();
  handlers_.add_record(record);
  handlers_.granted();
}

void RunLeases::on_denied(std::string why) {
  if (!stop_waiting()) return;  // it ends anyway
  handlers_.withheld(std::move(why));
}

void RunLeases::on_wait_over() {
  timer_.reset();
  handlers_.withheld(
      fmt::format("the program waited {:g} s for a GPU lease, the longest that this server allows "
                  "(--lease-wait-timeout-seconds); GET /gpus shows who has the GPU, or that it is quarantined",
                  std::chrono::duration<double>(terms_.wait_max).count()));
}

void RunLeases::ask_to_end_context(std::function<void(bool is_ours)> begin) {
  KCORAL_CHECK(!lease_);
  is_for_context_ = true;
  timer_ = loop_.run_after(limits::kContextEndWait, [this, begin] {
    timer_.reset();
    begin(/*is_ours=*/false);
  });
  const auto granted = [this, begin] {
    if (stop_waiting()) begin(/*is_ours=*/true);
  };
  lease_ = leases_.ask({.purpose = LeasePurpose::kContext, .priority = terms_.priority, .devices = known_devices()},
                       {.granted = granted});
}

const std::vector<int>& RunLeases::known_devices() const { return devices_.empty() ? terms_.slot_devices : devices_; }

bool RunLeases::stop_waiting() {
  if (!timer_) return false;
  loop_.cancel(*std::exchange(timer_, std::nullopt));
  return true;
}

void RunLeases::end(bool processes_ended) {
  if (!lease_) return;
  const std::unique_ptr<DeviceLease> lease = std::move(lease_);
  stop_waiting();
  ended_waited_ += lease->waited();
  ended_held_ += lease->held();
  // The audit tells of the program's leases: each that was granted is released.
  if (lease->is_held() && !is_for_context_) {
    handlers_.add_record({{"event", "lease_released"}, {"held_ms", to_ms(lease->held())}});
  }
  lease->end(processes_ended);
}

std::vector<size_t> RunLeases::visible_devices() const {
  std::vector<size_t> visible;
  for (const int device : devices_) {
    const auto& all = terms_.slot_devices;
    visible.push_back(static_cast<size_t>(std::find(all.begin(), all.end(), device) - all.begin()));
  }
  return visible;
}

std::chrono::nanoseconds RunLeases::waited() const {
  return ended_waited_ + (lease_ ? lease_->waited() : std::chrono::nanoseconds(0));
}

std::chrono::nanoseconds RunLeases::held() const {
  return ended_held_ + (lease_ ? lease_->held() : std::chrono::nanoseconds(0));
}

}  // namespace kcoral::executor
