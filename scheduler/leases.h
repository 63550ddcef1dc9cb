// The GPU leases of a server: who asks, who is granted, and what becomes of the devices of those that ended.
//
// It promises what LeaseTable promises, and that a lease whose processes ended passes on only once its devices are
// clear of them (devices/clearance.h); a device that is not clear in time, of which the driver does not tell, or whose
// holder cannot be ended, is quarantined, and comes back by itself. Who can be granted nothing without devices that
// have been quarantined for limits::kQuarantineGrace is told why, unless it would rather wait on. Belongs to its loop's
// thread, except for `view` and `figures`.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/uuid.h"
#include "devices/clearance.h"
#include "scheduler/lease_table.h"

namespace kcoral::scheduler {

/// For whom a lease is.
struct LeaseHolder {
  std::string executor;
  std::optional<Uuid> request_id;  // none: it makes or ends a context while nobody needs the device
};

/// Why a device or a slot is out of use.
struct Quarantine {
  WallTime since{};
  std::string reason;
};

class Leases {
 public:
  struct Owner {
    std::function<std::vector<pid_t>()> executors;              // that live; asked when a device is to be cleared
    std::function<void(std::set<int> devices)> on_quarantined;  // those that are, whenever that changes
  };
  /// `clearance` outlives this, and calls back no more once this is gone.
  Leases(std::vector<int> devices, devices::Clearance& clearance, EventLoop& loop, Owner owner);
  ~Leases();

  struct Answers {
    std::function<void(const std::vector<int>& devices)> granted;
    std::function<void(const std::string& why)> denied = {};  // it is granted no more; none: it waits on
  };
  /// One of the answers runs once unless the lease is ended before, perhaps from within this call. Requires: `wanted`
  /// names devices of this server, and no more than it has.
  [[nodiscard]] LeaseId ask(LeaseHolder holder, LeaseTable::Wanted wanted, Answers answers);

  /// Its holder's processes cannot be ended: the devices that it holds are quarantined until they are gone after all.
  void quarantine(LeaseId lease, const std::string& reason);

  /// Withdraws it, or gives it back; changes nothing of one that was denied. `processes_ended`: those of its holder
  /// have, so that its devices are looked at before they pass on.
  void end(LeaseId lease, bool processes_ended);

  /// None if it is not quarantined.
  std::optional<Quarantine> quarantine_of(int device) const;

  struct DeviceView {
    LeaseTable::DeviceView table;
    std::optional<LeaseHolder> holder;
    WallTime since{};
    std::string trouble;  // of a quarantined one: what keeps it
  };
  /// Of each device, by id. Thread-safe.
  std::vector<DeviceView> view() const;

  /// Of the leases that programs were granted, since the start.
  struct Figures {
    HistogramView waited;
    HistogramView held;  // of those that have ended
  };
  /// Thread-safe.
  Figures figures() const { return {waited_.view(), held_.view()}; }

 private:
  struct Entry {
    LeaseHolder holder;
    Answers answers;
    std::optional<SteadyTime> granted_at = {};
  };
  struct Trouble {
    std::string reason;
    EventLoop::TimerId grace_timer = 0;
  };
  void settle();
  bool grant_some();
  bool deny_one();
  std::string why_denied(const std::vector<int>& devices) const;
  void clear(int device);
  void stop_waiting(int device);
  void on_cleared(int device);
  void quarantine(int device, const std::string& reason);
  void on_usable_again(int device);
  void tell_quarantined();
  void update_view();

  devices::Clearance& clearance_;
  EventLoop& loop_;
  Owner owner_;
  LeaseTable table_;
  std::map<LeaseId, Entry> entries_;
  std::map<int, EventLoop::TimerId> unanswered_;  // devices that are looked at, without a word so far
  std::map<int, Trouble> trouble_;                // of those that are quarantined
  std::map<int, WallTime> since_;
  Histogram waited_{kProgramSecondsBounds};
  Histogram held_{kProgramSecondsBounds};
  bool settling_ = false;
  mutable Mutex view_mutex_;
  std::vector<DeviceView> view_ KCORAL_GUARDED_BY(view_mutex_);
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);  // expires with this object
};

}  // namespace kcoral::scheduler
