#include "scheduler/slot.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "scheduler/answer_builder.h"
#include "schema/limits.h"

namespace kcoral::scheduler {

// After the store could not commit: often enough to go on soon, seldom enough not to spin.
constexpr auto kCommitRetry = std::chrono::seconds(1);

Slot::Slot(std::unique_ptr<executor::Executor> executor, store::Store& store, EventLoop& loop, SlotOwner& owner,
           Leases* leases, uint64_t response_bytes_max)
    : executor_(std::move(executor)),
      store_(store),
      loop_(loop),
      owner_(owner),
      leases_(leases),
      response_bytes_max_(response_bytes_max) {}

void Slot::begin_claim() {
  KCORAL_CHECK(state_ == State::kIdle && !is_claiming_);
  is_claiming_ = true;
}

void Slot::end_claim(std::optional<store::Claim> claim) {
  is_claiming_ = false;
  if (!claim) return;
  if (state_ == State::kIdle) return run(std::move(*claim));
  store_.give_back(claim->fence, "its executor was lost before it was told");
}

void Slot::run(store::Claim claim) {
  fence_ = claim.fence;
  queued_ = claim.queued;
  executor::Assignment assignment;
  assignment.request_id = claim.fence.request_id;
  assignment.attempt = claim.fence.attempt;
  assignment.timeout = claim.timeout;
  assignment.output_limit_bytes = claim.output_limit_bytes;
  assignment.gpu_count = leases_ != nullptr ? claim.gpu_count : 0;
  assignment.priority = claim.priority;
  assignment.program = std::move(claim.program);
  for (store::StagedBlob& blob : claim.blobs) assignment.blobs.emplace_back(blob.sha256, std::move(blob.content));
  state_ = State::kRunning;
  gpus_noted_.clear();
  given_back_.clear();
  failpoint("scheduler.run.starting");
  executor_->run(std::move(assignment));
  failpoint("scheduler.run.sent");
}

void Slot::cancel(const store::Fence& fence) {
  if (state_ == State::kRunning && fence_ == fence) executor_->cancel(fence.request_id);
}

void Slot::give_up(const std::string& reason) {
  given_up_ = true;
  if (state_ != State::kRunning) return;
  flush_records();
  abandon(*fence_, reason);
  move_to(State::kClearing);
}

void Slot::on_idle(const executor::ExecutorInfo& info) {
  flush_records();
  info_ = info;
  if (state_ == State::kQuarantined) spdlog::warn("{} is back: those processes are gone", name());
  move_to(State::kIdle);
}

void Slot::on_running(int pid) {
  if (state_ == State::kRunning) store_.mark_running(*fence_, pid);
}

void Slot::on_records(std::vector<executor::RunRecord> records) {
  for (executor::RunRecord& record : records) records_.push_back({record.at, std::move(record.members)});
  if (!flush_timer_) flush_timer_ = loop_.run_after(limits::kRecordsDelayScheduler, [this] { flush_records(); });
}

void Slot::on_output(executor::OutputStream stream, std::shared_ptr<const UniqueFd> memory) {
  if (state_ != State::kRunning) return;
  const bool is_stdout = stream == executor::OutputStream::kStdout;
  store_.note_output(*fence_, is_stdout ? store::OutputStream::kStdout : store::OutputStream::kStderr,
                     std::move(memory));
}

// --- leases ---

void Slot::on_lease_asked(const executor::LeaseAsk& ask) {
  KCORAL_CHECK(leases_ != nullptr);
  LeaseHolder holder{name(), std::nullopt};
  if (ask.for_program() && fence_) holder.request_id = fence_->request_id;
  if (ask.for_program()) given_back_.clear();
  leases_asked_[ask.id].for_program = ask.for_program();
  Leases::Answers answers;
  answers.granted = [this, lease = ask.id](const std::vector<int>& devices) { grant(lease, devices); };
  // Whoever makes or ends a context waits for as long as the executor lets it.
  if (ask.for_program()) answers.denied = [this, lease = ask.id](const std::string& why) { deny(lease, why); };
  const LeaseId id = leases_->ask(std::move(holder), {ask.priority, ask.devices, ask.count}, std::move(answers));
  const auto lease = leases_asked_.find(ask.id);
  if (lease != leases_asked_.end()) {
    lease->second.id = id;
  } else {  // it was granted and lost from within
    leases_->end(id, /*processes_ended=*/true);
  }
}

void Slot::grant(uint64_t id, const std::vector<int>& devices) {
  const auto lease = leases_asked_.find(id);
  if (lease == leases_asked_.end()) return;
  lease->second.devices = devices;
  const bool for_program = lease->second.for_program;
  executor_->grant_lease(id, devices);
  if (!for_program || !fence_) return;
  // Most programs have one lease after another of the same devices.
  if (devices != gpus_noted_) {
    gpus_noted_ = devices;
    store_.note_gpus(*fence_, devices);
  }
  owner_.on_devices_taken(*this, devices, fence_->request_id);
}

void Slot::deny(uint64_t id, const std::string& why) {
  if (!leases_asked_.contains(id)) return;
  spdlog::warn("{} waits for a GPU in vain: {}", name(), why);
  executor_->deny_lease(id, why);
}

void Slot::on_lease_ended(uint64_t id, bool processes_ended) {
  const auto lease = leases_asked_.find(id);
  if (lease == leases_asked_.end()) return;
  const Lease ended = std::move(lease->second);
  leases_asked_.erase(lease);
  if (ended.for_program && !processes_ended && state_ == State::kRunning) given_back_ = ended.devices;
  leases_->end(ended.id, processes_ended);
}

void Slot::note_devices_taken(const std::vector<int>& devices, const Uuid& request_id) {
  const bool is_ours = std::any_of(devices.begin(), devices.end(), [this](int device) {
    return std::find(given_back_.begin(), given_back_.end(), device) != given_back_.end();
  });
  if (is_ours && state_ == State::kRunning) executor_->tell_device_holder(request_id);
}

// --- how a run ends ---

void Slot::on_outcome(executor::RunReport report) {
  // Abandoned before: the store has the request's true state already.
  if (state_ != State::kRunning) return;
  failpoint("scheduler.outcome.received");
  store::Completion completion = make_completion(fence_->request_id, queued_, report, response_bytes_max_);
  completion.records = take_records();
  commit("the outcome of " + fence_->request_id.str(),
         [this, fence = *fence_, completion = std::move(completion)](std::function<void(Status)> done) {
           store_.finish(fence, completion, std::move(done));
         });
  move_to(State::kClearing);
}

void Slot::on_quarantined(std::string reason) {
  spdlog::error("{} is quarantined: {}", name(), reason);
  for (const auto& [id, lease] : leases_asked_) leases_->quarantine(lease.id, reason);
  quarantine_ = {loop_.clock().wall_now(), std::move(reason)};
  move_to(State::kQuarantined);
}

void Slot::on_lost(std::string reason, bool permanent) {
  if (state_ == State::kRunning) {
    failpoint("scheduler.loss.noticed");
    spdlog::warn("{} was lost while it ran {}: {}", name(), fence_->request_id.str(), reason);
    flush_records();
    abandon(*fence_, reason);
  } else {
    spdlog::warn("{} was lost: {}", name(), reason);
  }
  for (const auto& [id, lease] : std::exchange(leases_asked_, {})) leases_->end(lease.id, /*processes_ended=*/true);
  move_to(permanent ? State::kBroken : State::kStarting);
  if (permanent) owner_.on_slot_broken(name(), reason);
}

void Slot::move_to(State state) {
  state_ = state;
  owner_.on_slot_changed();
}

void Slot::flush_records() {
  std::vector<store::AuditRecord> records = take_records();
  if (!records.empty()) store_.append_audit(*fence_, std::move(records));
}

std::vector<store::AuditRecord> Slot::take_records() {
  if (flush_timer_) loop_.cancel(*std::exchange(flush_timer_, std::nullopt));
  return std::exchange(records_, {});
}

void Slot::abandon(const store::Fence& fence, std::string reason) {
  commit("the loss of " + fence.request_id.str(),
         [this, fence, reason = std::move(reason)](std::function<void(Status)> done) {
           store_.abandon(fence, reason, std::move(done));
         });
}

void Slot::commit(std::string what, Operation operation) {
  ++commits_pending_;
  operation([this, what, operation](Status status) {
    loop_.post([this, what, operation, status = std::move(status)] { on_committed(what, operation, status); });
  });
}

void Slot::on_committed(const std::string& what, const Operation& operation, const Status& status) {
  --commits_pending_;
  // A conflict means that the request has ended otherwise.
  const bool is_refused = !status && status.error().kind == ErrorKind::kConflict;
  if (!status && !is_refused) spdlog::error("{} could not be committed: {}", what, status.error().message);
  if (!status && !is_refused && !given_up_) {
    ++commits_pending_;
    loop_.run_after(kCommitRetry, [this, what, operation] {
      --commits_pending_;
      commit(what, operation);
    });
  }
  owner_.on_slot_changed();
}

}  // namespace kcoral::scheduler
