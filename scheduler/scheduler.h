// Brings queued requests to executors as they become free, and outcomes back to the store.
//
// It promises: a free slot never stands idle while a request waits; a request is given to one slot at a time; when the
// scheduler stops, what is queued stays queued and what runs is finished or given back to the store.
//
// The scheduler belongs to one EventLoop: it is made, used and destroyed on that loop's thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/executor.h"
#include "scheduler/slot.h"
#include "store/store.h"

namespace kcoral::scheduler {

struct SchedulerConfig {
  uint64_t response_bytes_max = limits::kResponseBytesMax;
};

class Scheduler final : public SlotOwner {
 public:
  /// Runs once: when every slot is ready, or when the environment keeps one from ever being so.
  using ReadyCallback = std::function<void(Result<executor::ExecutorInfo>)>;

  /// Requires: the store's recovery is still to come, since this registers the store's work listener.
  Scheduler(std::vector<std::unique_ptr<executor::Executor>> executors, store::Store& store, EventLoop& loop,
            SchedulerConfig config = {});

  /// Starts the executors. Nothing is claimed before every one of them has been ready or was given up.
  /// Requires: the store's recovery is done.
  void start(ReadyCallback ready);

  /// Claims no more; `drained` runs when nothing runs any more and every outcome is committed. What still runs after
  /// `grace` is abandoned.
  void drain(std::chrono::milliseconds grace, std::function<void()> drained);

 private:
  void on_slot_changed() override;
  void on_slot_broken(const std::string& slot, const std::string& reason) override;
  void report_ready_once();
  void dispatch();
  void claim_for(Slot& slot);
  void on_claim_result(Slot& slot, Result<std::optional<store::Claim>> result);
  void check_drained();

  store::Store& store_;
  EventLoop& loop_;
  std::vector<std::unique_ptr<Slot>> slots_;
  ReadyCallback ready_;
  std::function<void()> drained_;
  bool started_ = false;  // every slot was ready once
  bool draining_ = false;
  bool retry_armed_ = false;
  uint64_t claims_pending_ = 0;
};

}  // namespace kcoral::scheduler
