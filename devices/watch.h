// Looks at the devices from a thread of its own: whether a device is clear of ended processes, and what /gpus shows.
//
// Thread-safe; callbacks run on its thread. `stop` (or its end) waits for a look that is under way, and no callback
// runs after it.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "devices/clearance.h"
#include "devices/devices.h"
#include "schema/limits.h"

namespace kcoral::devices {

/// How often it looks, and for how long a device may be kept before that is trouble.
struct WatchPace {
  std::chrono::milliseconds round{1000};        // between two looks at each device
  std::chrono::milliseconds pause_max{50};      // at one that is to be clear; they grow up to this
  std::chrono::milliseconds pause_stuck{1000};  // at one that is stuck
  std::chrono::milliseconds stuck_after = limits::kKillWait;
};

class Watch final : public Clearance {
 public:
  /// `looked_at`: the devices whose state is kept fresh. Requires: nothing of ours runs on them yet.
  Watch(const Devices& devices, std::vector<int> looked_at, WatchPace pace = {});
  ~Watch() override { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void when_clear(int device, std::vector<pid_t> executors, Handlers handlers) override;

  /// As of the last look, at most about a round ago; none if that failed.
  std::optional<DeviceState> state(int device) const;

  void stop();

 private:
  struct Clearing {
    int device = 0;
    std::vector<pid_t> executors;
    Handlers handlers;
    SteadyTime stuck_at{};
    SteadyTime next_look{};
    std::chrono::milliseconds pause{};
    bool is_stuck = false;
  };

  void run();
  void look_at_all();
  /// What keeps the device from being clear; empty when it is.
  std::string what_remains(const Clearing& clearing);
  void look_at(Clearing& clearing);

  const Devices& devices_;
  const WatchPace pace_;
  std::map<int, std::optional<uint64_t>> unused_bytes_;  // in use on each device while nobody used it, where known
  mutable Mutex mutex_;
  ConditionVariable changed_;
  bool stopping_ KCORAL_GUARDED_BY(mutex_) = false;
  std::list<Clearing> arrived_ KCORAL_GUARDED_BY(mutex_);
  std::map<int, DeviceState> states_ KCORAL_GUARDED_BY(mutex_);
  std::list<Clearing> clearing_;  // of its own thread
  SteadyTime next_round_{};
  std::thread thread_;
};

}  // namespace kcoral::devices
