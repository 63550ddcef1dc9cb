#include "executor/supervisor/device_lease.h"

#include <utility>

#include "executor/frame_fields.h"

namespace kcoral::executor {

DeviceLease::DeviceLease(DeviceLeases& leases, uint64_t id, Answers answers)
    : leases_(leases), id_(id), answers_(std::move(answers)), asked_at_(leases.clock_.now()) {}

std::chrono::nanoseconds DeviceLease::waited() const { return granted_at_.value_or(leases_.clock_.now()) - asked_at_; }

std::chrono::nanoseconds DeviceLease::held() const {
  return granted_at_ ? std::chrono::nanoseconds(leases_.clock_.now() - *granted_at_) : std::chrono::nanoseconds(0);
}

void DeviceLease::end(bool processes_ended) {
  if (std::exchange(is_ended_, true)) return;
  leases_.leases_.erase(id_);
  leases_.send_({{"type", "lease_end"}, {"lease", id_}, {"processes_ended", processes_ended}});
}

std::unique_ptr<DeviceLease> DeviceLeases::ask(LeaseAsk ask, DeviceLease::Answers answers) {
  ask.id = next_++;
  std::unique_ptr<DeviceLease> lease(new DeviceLease(*this, ask.id, std::move(answers)));
  leases_[ask.id] = lease.get();
  send_(lease_request_frame(ask));
  return lease;
}

Result<DeviceLease*> DeviceLeases::take_answer(const Frame& frame) {
  auto id = unsigned_field(frame.body, "lease");
  if (!id) return fail(id.error());
  const auto found = leases_.find(*id);
  if (found == leases_.end()) return nullptr;
  DeviceLease& lease = *found->second;
  if (std::exchange(lease.is_answered_, true)) return fail(ErrorKind::kEngine, "lease {} was answered before", *id);
  return &lease;
}

Status DeviceLeases::take_grant(const Frame& frame) {
  auto devices = device_ids_field(frame.body, "devices");
  if (!devices) return fail(devices.error());
  auto lease = take_answer(frame);
  if (!lease) return fail(lease.error());
  if (*lease == nullptr) return {};
  (*lease)->devices_ = std::move(*devices);
  (*lease)->granted_at_ = clock_.now();
  (*lease)->answers_.granted();
  return {};
}

Status DeviceLeases::take_denial(const Frame& frame) {
  auto message = string_field(frame.body, "message");
  if (!message) return fail(message.error());
  auto lease = take_answer(frame);
  if (!lease) return fail(lease.error());
  if (*lease == nullptr) return {};
  if (!(*lease)->answers_.denied) return fail(ErrorKind::kEngine, "that lease is none that can be denied");
  (*lease)->answers_.denied(std::move(*message));
  return {};
}

}  // namespace kcoral::executor
