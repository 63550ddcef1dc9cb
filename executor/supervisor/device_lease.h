// Leases of GPUs as an executor asks the server for them.
//
// It promises: each lease that was asked for is granted or denied at most once, and ended exactly once, at the latest
// when its DeviceLease is destroyed, whether it was granted by then or not. Belongs to its loop's thread; DeviceLeases
// outlives every DeviceLease.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "executor/frame.h"
#include "executor/lease_ask.h"

namespace kcoral::executor {

class DeviceLeases;

class DeviceLease {
 public:
  struct Answers {
    std::function<void()> granted;
    std::function<void(std::string why)> denied = {};  // then it is to be ended; none: it is one that waits on
  };

  /// Of a lease that nobody ended: whoever has the device next is to find out whether it is clear.
  ~DeviceLease() { end(/*processes_ended=*/true); }
  DeviceLease(const DeviceLease&) = delete;
  DeviceLease& operator=(const DeviceLease&) = delete;

  bool is_held() const { return granted_at_.has_value() && !is_ended_; }
  /// Of a granted one.
  const std::vector<int>& devices() const { return devices_; }
  /// Until it was granted, or until now.
  std::chrono::nanoseconds waited() const;
  /// Since it was granted, until now; 0 if it was not.
  std::chrono::nanoseconds held() const;

  /// Withdraws it or gives it back. `processes_ended`: those that used the devices have, or may have; false passes the
  /// devices on without a look. Does nothing the second time.
  void end(bool processes_ended);

 private:
  friend class DeviceLeases;
  DeviceLease(DeviceLeases& leases, uint64_t id, Answers answers);

  DeviceLeases& leases_;
  uint64_t id_;
  Answers answers_;
  SteadyTime asked_at_;
  std::optional<SteadyTime> granted_at_;
  std::vector<int> devices_;
  bool is_answered_ = false;
  bool is_ended_ = false;
};

class DeviceLeases {
 public:
  using Send = std::function<void(const nlohmann::json& body)>;
  DeviceLeases(Clock& clock, Send send) : clock_(clock), send_(std::move(send)) {}

  /// `ask.id` is given here. One of the answers runs when the server gives it, never from within this call.
  std::unique_ptr<DeviceLease> ask(LeaseAsk ask, DeviceLease::Answers answers);

  /// A `lease_granted` or `lease_denied` frame. One for a lease that was ended meanwhile crossed it on the way, and is
  /// ignored.
  Status take_grant(const Frame& frame);
  Status take_denial(const Frame& frame);

 private:
  friend class DeviceLease;
  /// That which the frame answers, for the first time; null if it was ended.
  Result<DeviceLease*> take_answer(const Frame& frame);

  Clock& clock_;
  Send send_;
  uint64_t next_ = 1;
  std::map<uint64_t, DeviceLease*> leases_;  // not ended
};

}  // namespace kcoral::executor
