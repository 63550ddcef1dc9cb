#include "executor/supervisor/device_lease.h"

#include <utility>

#include "executor/frame_fields.h"

namespace kcoral::executor {

DeviceLease::DeviceLease(DeviceLeases& leases, uint64_t id, std::function<void()> granted)
    : leases_(leases), id_(id), granted_(std::move(granted)), asked_at_(leases.clock_.now()) {}

std::chrono::nanoseconds DeviceLease::waited() const { return granted_at_.value_or(leases_.clock_.now()) - asked_at_; }

std::chrono::nanoseconds DeviceLease::held() const {
  return granted_at_ ? std::chrono::nanoseconds(leases_.clock_.now() - *granted_at_) : std::chrono::nanoseconds(0);
}

void DeviceLease::end(bool processes_ended) {
  if (std::exchange(is_ended_, true)) return;
  leases_.leases_.erase(id_);
  leases_.send_({{"type", "lease_end"}, {"lease", id_}, {"processes_ended", processes_ended}});
}

std::unique_ptr<DeviceLease> DeviceLeases::ask(LeaseAsk ask, std::function<void()> granted) {
  ask.id = next_++;
  std::unique_ptr<DeviceLease> lease(new DeviceLease(*this, ask.id, std::move(granted)));
  leases_[ask.id] = lease.get();
  send_(lease_request_frame(ask));
  return lease;
}

Status DeviceLeases::take_grant(const Frame& frame) {
  auto id = unsigned_field(frame.body, "lease");
  if (!id) return fail(id.error());
  auto devices = device_ids_field(frame.body, "devices");
  if (!devices) return fail(devices.error());
  const auto found = leases_.find(*id);
  if (found == leases_.end()) return {};
  DeviceLease& lease = *found->second;
  if (lease.granted_at_) return fail(ErrorKind::kEngine, "lease {} was granted before", *id);
  lease.devices_ = std::move(*devices);
  lease.granted_at_ = clock_.now();
  lease.granted_();
  return {};
}

}  // namespace kcoral::executor
