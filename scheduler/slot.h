// One executor and the request that it has: from the claim to the commit of the outcome.
//
// A slot promises that every claim given to it ends in the store exactly once: finished with the executor's report, or
// abandoned when the executor was lost, or given back if that had heard nothing of it. While the store cannot commit
// that (a full disk, say), it is tried again. It belongs to the scheduler's loop thread; others may look at its state.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/executor.h"
#include "scheduler/leases.h"
#include "store/store.h"

namespace kcoral::scheduler {

class Slot;

/// What a slot tells its scheduler.
class SlotOwner {
 public:
  virtual ~SlotOwner() = default;
  virtual void on_slot_changed() = 0;
  /// A request was granted those devices.
  virtual void on_devices_taken(const Slot& by, const std::vector<int>& devices, const Uuid& request_id) = 0;
  virtual void on_slot_broken(const std::string& slot, const std::string& reason) = 0;
};

class Slot final : public executor::ExecutorEvents {
 public:
  enum class State {
    kStarting,  // its executor is not ready yet, or being rebuilt
    kIdle,
    kRunning,      // has a request whose outcome is not known
    kClearing,     // the outcome is known; the program's processes are being ended
    kQuarantined,  // they could not be ended; it comes back once they are gone after all
    kBroken,       // the environment is at fault; it will not come back
  };

  /// `leases`: null on a CPU server.
  Slot(std::unique_ptr<executor::Executor> executor, store::Store& store, EventLoop& loop, SlotOwner& owner,
       Leases* leases, uint64_t response_bytes_max);

  void start() { executor_->start(*this); }
  State state() const { return state_; }
  const std::string& name() const { return executor_->name(); }
  int executor_pid() const { return executor_->pid(); }
  const std::vector<int>& devices() const { return executor_->devices(); }
  const executor::ExecutorInfo& info() const { return info_; }
  /// Requires: it is quarantined.
  const Quarantine& quarantine() const { return quarantine_; }
  bool is_claiming() const { return is_claiming_; }
  /// Outcomes handed to the store whose commit is not confirmed yet.
  int commits_pending() const { return commits_pending_; }

  /// Requires: idle and not claiming. `end_claim` follows, whatever becomes of the executor meanwhile.
  void begin_claim();
  void end_claim(std::optional<store::Claim> claim);

  /// Has that run ended by its executor, which says what came of it. Does nothing if it is not running here: what the
  /// store gets of a run that was lost or given back is enough, since it knows that it was cancelled.
  void cancel(const store::Fence& fence);

  /// Another slot's request has those devices now. A program that gave them back, and touches them all the same, is
  /// told whom it disturbed.
  void note_devices_taken(const std::vector<int>& devices, const Uuid& request_id);

  /// Gives a running request up, so that the store requeues or interrupts it; its executor goes down with the server.
  /// What the store cannot commit is not tried again: the next start recovers it.
  void give_up(const std::string& reason);

  void on_idle(const executor::ExecutorInfo& info) override;
  void on_running(int pid) override;
  void on_records(std::vector<executor::RunRecord> records) override;
  void on_output(executor::OutputStream stream, std::shared_ptr<const UniqueFd> memory) override;
  void on_lease_asked(const executor::LeaseAsk& ask) override;
  void on_lease_ended(uint64_t id, bool processes_ended) override;
  void on_outcome(executor::RunReport report) override;
  void on_quarantined(std::string reason) override;
  void on_lost(std::string reason, bool permanent) override;

 private:
  struct Lease {
    LeaseId id = 0;
    bool for_program = false;
    std::vector<int> devices;  // once it is granted
  };
  void move_to(State state);
  void grant(uint64_t id, const std::vector<int>& devices);
  void deny(uint64_t id, const std::string& why);
  void run(store::Claim claim);
  void flush_records();
  std::vector<store::AuditRecord> take_records();
  /// Runs an operation of the store until it is committed, or refused for good.
  using Operation = std::function<void(std::function<void(Status)> done)>;
  void commit(std::string what, Operation operation);
  void on_committed(const std::string& what, const Operation& operation, const Status& status);
  void abandon(const store::Fence& fence, std::string reason);

  std::unique_ptr<executor::Executor> executor_;
  store::Store& store_;
  EventLoop& loop_;
  SlotOwner& owner_;
  Leases* leases_;
  uint64_t response_bytes_max_;

  std::atomic<State> state_ = State::kStarting;
  bool is_claiming_ = false;  // offered to take a request; the executor may be lost and come back meanwhile
  executor::ExecutorInfo info_;
  Quarantine quarantine_;
  std::optional<store::Fence> fence_;  // of the request it has, or had last: late records go to it
  std::chrono::microseconds queued_{};
  std::map<uint64_t, Lease> leases_asked_;  // asked for and not ended, by the executor's numbers
  std::vector<int> gpus_noted_;             // that the store knows of, of the request it has
  std::vector<int> given_back_;  // by the program that runs: devices that it may not touch until it asks again
  std::vector<store::AuditRecord> records_;  // not yet given to the store
  std::optional<EventLoop::TimerId> flush_timer_;
  int commits_pending_ = 0;
  bool given_up_ = false;
};

}  // namespace kcoral::scheduler
