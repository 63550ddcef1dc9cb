// Looks at the devices from a thread of its own: whether a device is clear of ended processes (Clearings), and what
// /gpus shows.
//
// It promises what Clearance promises, and that `state` never waits for the driver. Thread-safe. Callbacks run on its
// thread. `stop` (or its end) waits for a look that is under way, and no callback runs after it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "devices/clearance.h"
#include "devices/clearings.h"
#include "devices/devices.h"
#include "devices/process_table.h"

namespace kcoral::devices {

class Watch final : public Clearance {
 public:
  /// Looks at each device of `looked_at`, and goes on doing so. What of its memory no process has now is what the
  /// driver itself holds: nothing of that counts as left behind by a program. An error where the driver does not tell,
  /// since nobody could say later whether a device is clear. `devices` and `processes` outlive the watch.
  static Result<std::unique_ptr<Watch>> create(const Devices& devices, const std::vector<int>& looked_at,
                                               const ProcessTable& processes = ProcessTable::system());
  ~Watch() override { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Requires: it is one of `looked_at`.
  void when_clear(int device, std::vector<pid_t> executors, Handlers handlers) override;

  /// As of the last look, at most about a second ago; none where the driver did not tell then.
  std::optional<DeviceState> state(int device) const;

  /// Devices that are not clear by then stay without a word. A driver that does not answer ends the process, for nobody
  /// can end that look: whatever must not be lost is to be kept before.
  void stop();

 private:
  struct Arrived {
    int device = 0;
    std::vector<pid_t> executors;
    Handlers handlers;
  };

  Watch(const Devices& devices, std::map<int, DeviceState> states, const ProcessTable& processes);
  void run();
  /// False once it is to stop.
  bool wait_until(SteadyTime next, std::vector<Arrived>& arrived);
  void look_at_all();

  const Devices& devices_;
  const std::vector<int> looked_at_;
  Clock& clock_ = Clock::system();
  Clearings clearings_;  // of its own thread
  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool stopping_ KCORAL_GUARDED_BY(mutex_) = false;
  bool has_ended_ KCORAL_GUARDED_BY(mutex_) = false;
  std::vector<Arrived> arrived_ KCORAL_GUARDED_BY(mutex_);
  std::map<int, DeviceState> states_ KCORAL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kcoral::devices
