// Brings queued requests to executors as they become free, and outcomes back to the store.
//
// It promises: a free slot never stands idle while a request waits that it could run (programs for several GPUs have
// slots of their own, and a slot whose devices are quarantined runs nothing); a request is given to one slot at a time;
// when the scheduler stops, what is queued stays queued and what runs is finished or given back to the store.
//
// The scheduler belongs to one EventLoop: it is made, used and destroyed on that loop's thread, or while
// the loop does not run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/mutex.h"
#include "executor/executor.h"
#include "scheduler/roster.h"
#include "scheduler/slot.h"
#include "store/store.h"

namespace kcoral::scheduler {

struct SchedulerConfig {
  uint64_t response_bytes_max = limits::kResponseBytesMax;
  std::vector<int> devices;                 // that programs lease; none on a CPU server
  devices::Clearance* clearance = nullptr;  // of the devices; outlives the scheduler
  Roster::Order order = Roster::Order::kLongestIdle;
};

class Scheduler final : public SlotOwner {
 public:
  struct Callbacks {
    /// Runs once, when every slot is ready.
    std::function<void(const executor::ExecutorInfo&)> on_ready;
    /// Runs at most once: the environment keeps a slot from ever becoming ready at the start, or the last slot was
    /// given up later. Nothing more will run.
    std::function<void(Error)> on_unable;
  };

  Scheduler(std::vector<std::unique_ptr<executor::Executor>> executors, store::Store& store, EventLoop& loop,
            SchedulerConfig config = {});

  /// Starts the executors. Nothing is claimed before every one of them has been ready. Requires: the store's recovery
  /// is done, and the store is closed before this scheduler goes.
  void start(Callbacks callbacks);

  struct Quarantined {
    std::string executor;
    Quarantine quarantine;
  };
  struct Capacity {
    size_t slots = 0;  // how many programs can run at once: neither given up nor quarantined, nor is their only GPU
    std::vector<Quarantined> quarantined;
  };
  /// Thread-safe.
  Capacity capacity() const;

  /// How many executors are in each state, by its name. Thread-safe.
  std::vector<std::pair<std::string_view, size_t>> executor_states() const;

  /// Of each device; none on a CPU server. Thread-safe.
  std::vector<Leases::DeviceView> devices() const;
  /// None on a CPU server. Thread-safe.
  std::optional<Leases::Figures> lease_figures() const;

  /// Claims no more; `drained` runs when nothing runs any more and every outcome is committed. What still runs after
  /// `grace` is abandoned.
  void drain(std::chrono::milliseconds grace, std::function<void()> drained);

 private:
  void on_slot_changed() override;
  void on_devices_taken(const Slot& by, const std::vector<int>& devices, const Uuid& request_id) override;
  void on_slot_broken(const std::string& slot, const std::string& reason) override;
  std::vector<pid_t> executor_pids() const;
  /// Of the only GPU that the slot's programs see.
  std::optional<Quarantine> gpu_quarantine(const Slot& slot) const;
  void update_capacity();
  void report_ready_once();
  void report_unable_once(Error error);
  void offer_idle_slots();
  void withdraw(Slot& slot);
  void on_claim(const std::string& slot, Result<std::optional<store::Claim>> claim);
  void check_drained();

  store::Store& store_;
  EventLoop& loop_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::unique_ptr<Leases> leases_;  // ends before the slots, which it calls
  Callbacks callbacks_;
  std::function<void()> drained_;
  bool started_ = false;  // every slot was ready once
  bool draining_ = false;
  std::set<std::string> pausing_;  // slots that could be given nothing and are not offered for a while
  Roster roster_;
  mutable Mutex capacity_mutex_;
  Capacity capacity_ KCORAL_GUARDED_BY(capacity_mutex_);
};

}  // namespace kcoral::scheduler
