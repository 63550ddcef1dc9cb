// Who holds which device, who waits for it, and who is next. Pure policy: it is told what happens and when, and says
// whom to grant what.
//
// It promises: a device has one holder at a time; leases are granted by priority and, between equal ones, in the order
// in which they were asked for; a lease for several devices is granted whole, in the order of the devices, and devices
// that become free are kept for the first who waits for several, so that nobody overtakes it. A lease ends once:
// whoever ends one that has ended, or was never asked for, changes nothing.
//
// A device whose last holder's processes may not be gone yet is held back (`kClearing`) until somebody says that it is
// clear. One that is quarantined is granted to nobody, and nothing is kept for whoever cannot be granted anything
// without it: those are the stranded. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace kcoral::scheduler {

using LeaseId = uint64_t;

class LeaseTable {
 public:
  struct Wanted {
    int priority = 0;          // higher first
    std::vector<int> devices;  // exactly these; empty: any
    size_t count = 1;          // how many, where any will do
    size_t needed() const { return devices.empty() ? count : devices.size(); }
  };
  struct Grant {
    LeaseId lease = 0;
    std::vector<int> devices;
    std::chrono::nanoseconds waited{};
  };
  struct Stranded {
    LeaseId lease = 0;
    std::vector<int> devices;  // that it could have, were they not quarantined
  };
  enum class DeviceUse { kFree, kHeld, kClearing };
  struct DeviceView {
    int id = 0;
    DeviceUse use = DeviceUse::kFree;
    bool is_quarantined = false;
    std::optional<LeaseId> holder;            // of a held one
    size_t waiters = 0;                       // leases that it could be granted to next
    uint64_t handovers = 0;                   // to somebody who waited when it became free
    std::chrono::nanoseconds idle_between{};  // over all of them: from the release to the grant
  };

  explicit LeaseTable(const std::vector<int>& devices);

  LeaseId ask(Wanted wanted, SteadyTime now);

  /// What can be granted now, each once: the holder is to be told.
  std::vector<Grant> grant(SteadyTime now);

  /// Those that wait and could be granted nothing without the devices that are quarantined since `since` or longer.
  std::vector<Stranded> stranded(SteadyTime since) const;

  /// Withdraws a lease that waits, or ends one that is held. `clear`: nothing of its holder is left on the devices, or
  /// its processes stay and are idle. Otherwise they are held back. Returns the devices that it held.
  std::vector<int> end(LeaseId lease, bool clear, SteadyTime now);

  /// A device that was held back can be used again, quarantined or not.
  void set_clear(int device);
  /// A device that is held or held back is out of use until its holder has ended it and it is clear after all.
  void quarantine(int device, SteadyTime now);

  std::vector<DeviceView> view() const;

 private:
  struct Waiting {
    Wanted wanted;
    SteadyTime since{};
  };
  struct Device {
    DeviceUse use = DeviceUse::kFree;
    std::optional<SteadyTime> quarantined_at;
    std::optional<LeaseId> holder;
    SteadyTime ended_at{};    // its last lease
    bool was_wanted = false;  // somebody waited when it ended
    uint64_t handovers = 0;
    std::chrono::nanoseconds idle_between{};
  };

  /// Whether the devices that are not quarantined, or not yet `since` then, would be enough.
  bool is_satisfiable(const Wanted& wanted, SteadyTime since = SteadyTime::max()) const;
  /// Waiting leases, the next first.
  std::vector<LeaseId> in_order() const;
  /// The devices that `wanted` gets of those in `available`; empty if it must wait. What it keeps others from taking
  /// is removed from `available` either way.
  std::vector<int> choose(const Wanted& wanted, std::vector<int>& available) const;
  static bool could_have(const Wanted& wanted, int device);
  static bool is_out(const Device& device, SteadyTime since);
  void hold(LeaseId lease, int device, SteadyTime now);

  std::map<int, Device> devices_;
  std::map<LeaseId, Waiting> waiting_;
  std::map<LeaseId, std::vector<int>> held_;
  LeaseId next_ = 1;
};

}  // namespace kcoral::scheduler
