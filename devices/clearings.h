// The devices that are being cleared of ended processes: what a Watch does from its thread, step by step and without
// one, so that a test can move time.
//
// It promises what Clearance promises, as far as NVML lets it: ARCHITECTURE.md, "Leases and contexts". Not thread-safe.
#pragma once

#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "devices/clearance.h"
#include "devices/devices.h"
#include "devices/process_table.h"

namespace kcoral::devices {

class Clearings {
 public:
  /// `unused_bytes`: how much memory of each device is in use by nobody. All that is referred to outlives this.
  Clearings(const Devices& devices, std::map<int, uint64_t> unused_bytes, const Clock& clock,
            const ProcessTable& processes);

  /// See Clearance::when_clear; the time that it may take counts from here. Requires: `unused_bytes` names the device.
  void add(int device, std::vector<pid_t> executors, Clearance::Handlers handlers);
  /// Looks at every device whose time has come, and calls back.
  void look();
  /// When the time of the next one comes; none while no device is being cleared.
  std::optional<SteadyTime> next() const;

 private:
  struct Clearing {
    int device = 0;
    std::vector<pid_t> executors;
    Clearance::Handlers handlers;  // `cleared` is empty once it was called
    SteadyTime stuck_at{};
    SteadyTime next_look{};
    std::chrono::milliseconds pause{};
    bool is_stuck = false;
  };
  enum class Owner { kLivingExecutor, kSomebodyElse, kEndedProgram, kUnknown };

  void look_at(Clearing& clearing);
  /// What keeps the device from being clear; empty when it is.
  std::string what_remains(const Clearing& clearing) const;
  std::string look_for_processes(const std::vector<DeviceProcess>& processes,
                                 const std::vector<pid_t>& executors) const;
  std::string look_for_missing_memory(int device, const DeviceState& state) const;
  Owner owner_of(pid_t pid, const std::vector<pid_t>& executors) const;
  std::optional<pid_t> find_abandoned() const;
  bool lives_where_programs_do(const ProcessTable::Process& process) const;
  bool is_abandoned(const ProcessTable::Process& process) const;

  const Devices& devices_;
  const std::map<int, uint64_t> unused_bytes_;
  const Clock& clock_;
  const ProcessTable& processes_;
  std::list<Clearing> clearing_;
};

}  // namespace kcoral::devices
