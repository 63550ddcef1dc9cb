// The leases of one program's run: those that the program asks for, one after another, and the one under which its
// context ends.
//
// It promises: there is one at a time; each of the program's is for the devices of its first; a wait for one ends when
// the server denies it, or after the longest time that it allows; and each is ended once, at the latest with this
// object.
//
// Belongs to its loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/supervisor/device_lease.h"

namespace kcoral::executor {

/// What a program leases, and how.
struct LeaseTerms {
  std::vector<int> slot_devices;  // by the server's numbers, in the order in which the slot sees them
  size_t count = 0;               // how many of them at once; 0 on a CPU server
  int priority = 0;               // among those who wait for a device
  std::chrono::milliseconds wait_max{};
};

class RunLeases {
 public:
  struct Handlers {
    std::function<void(const nlohmann::ordered_json& record)> add_record;  // to the audit
    std::function<void()> granted;                                         // the program goes on
    std::function<void(std::string why)> withheld;                         // it gets none, and is to be ended
  };
  RunLeases(EventLoop& loop, DeviceLeases& leases, LeaseTerms terms, Handlers handlers);
  ~RunLeases();
  RunLeases(const RunLeases&) = delete;
  RunLeases& operator=(const RunLeases&) = delete;

  /// For the program. `granted` or `withheld` follows, unless it ends or `stop_waiting` comes before. Requires: the
  /// program leases devices, and there is no lease.
  void ask();
  /// To end a context. `begin` runs once it is granted, or without it (`is_ours` is false) when
  /// limits::kContextEndWait is over, unless `stop_waiting` comes before. Requires: there is no lease.
  void ask_to_end_context(std::function<void(bool is_ours)> begin);

  /// Nobody goes on once what is waited for is granted. The lease is still to be ended. True if somebody waited.
  bool stop_waiting();

  /// Gives it back, or withdraws it, if there is one (DeviceLease::end).
  void end(bool processes_ended);

  /// Asked for and not ended.
  bool is_asked() const { return lease_ != nullptr; }
  bool is_held() const { return lease_ && lease_->is_held(); }
  size_t devices_held() const { return is_held() ? lease_->devices().size() : 0; }

  /// Of the program's leases; none until its first was granted.
  const std::vector<int>& devices() const { return devices_; }
  /// The same as the slot numbers what it sees, from 0.
  std::vector<size_t> visible_devices() const;

  /// Over all of them, until now.
  std::chrono::nanoseconds waited() const;
  std::chrono::nanoseconds held() const;

 private:
  void on_granted();
  void on_denied(std::string why);
  void on_wait_over();
  /// Those of the program's first lease; before that all of the slot's.
  const std::vector<int>& known_devices() const;

  EventLoop& loop_;
  DeviceLeases& leases_;
  LeaseTerms terms_;
  Handlers handlers_;
  std::unique_ptr<DeviceLease> lease_;                      // asked for or held
  bool is_for_context_ = false;                             // the program is over, and its context is to end
  std::vector<int> devices_;                                // of the program's first: those of all that follow
  std::chrono::nanoseconds ended_waited_{}, ended_held_{};  // of those that have ended
  std::optional<EventLoop::TimerId> timer_;                 // while somebody waits for it
};

}  // namespace kcoral::executor
