#include "scheduler/slot.h"

#include <iterator>
#include <utility>

#include "base/log.h"
#include "scheduler/answer_builder.h"

namespace kcoral::scheduler {

// The contract allows records of single instructions to lack the last 100 ms before a crash; batching them up to there
// spares a program of many short instructions a commit each.
constexpr auto kRecordsDelay = std::chrono::milliseconds(100);

Slot::Slot(std::unique_ptr<executor::Executor> executor, store::Store& store, EventLoop& loop, SlotOwner& owner,
           uint64_t response_bytes_max)
    : executor_(std::move(executor)),
      store_(store),
      loop_(loop),
      owner_(owner),
      response_bytes_max_(response_bytes_max) {}

void Slot::begin_claim() {
  KCORAL_CHECK(state_ == State::kIdle);
  state_ = State::kClaiming;
}

void Slot::on_nothing_claimed() {
  // The executor may have been lost meanwhile; then the slot is no longer claiming.
  if (state_ == State::kClaiming) state_ = State::kIdle;
}

void Slot::on_claimed(store::Claim claim) {
  fence_ = claim.fence;
  queued_ = claim.queued;
  if (state_ != State::kClaiming) {
    store_.abandon(claim.fence, "its executor was lost before the program started", commit_callback("abandon"));
    return;
  }
  executor::Assignment assignment;
  assignment.request_id = claim.fence.request_id;
  assignment.attempt = claim.fence.attempt;
  assignment.timeout = claim.timeout;
  assignment.output_limit_bytes = claim.output_limit_bytes;
  assignment.gpu_count = claim.gpu_count;
  assignment.program = std::move(claim.program);
  for (store::StagedBlob& blob : claim.blobs) assignment.blobs.emplace_back(blob.sha256, std::move(blob.content));
  state_ = State::kRunning;
  executor_->run(std::move(assignment));
}

void Slot::abandon(const std::string& reason) {
  if (state_ != State::kRunning) return;
  flush_records();
  store_.abandon(*fence_, reason, commit_callback("abandon"));
  move_to(State::kClearing);
}

void Slot::on_idle(const executor::ExecutorInfo& info) {
  flush_records();
  info_ = info;
  move_to(State::kIdle);
}

void Slot::on_running(int pid) {
  if (state_ == State::kRunning) store_.mark_running(*fence_, pid);
}

void Slot::on_records(std::vector<executor::RunRecord> records) {
  for (executor::RunRecord& record : records) records_.push_back({record.at, std::move(record.members)});
  if (!flush_timer_) flush_timer_ = loop_.run_after(kRecordsDelay, [this] { flush_records(); });
}

void Slot::on_outcome(executor::RunReport report) {
  // Abandoned before: the store has the request's true state already.
  if (state_ != State::kRunning) return;
  store::Completion completion = make_completion(fence_->request_id, queued_, report, response_bytes_max_);
  completion.records = take_records();
  store_.finish(*fence_, std::move(completion), commit_callback("finish"));
  move_to(State::kClearing);
}

void Slot::on_lost(std::string reason, bool permanent) {
  if (state_ == State::kRunning) {
    spdlog::warn("{} was lost while it ran {}: {}", name(), fence_->request_id.str(), reason);
    flush_records();
    store_.abandon(*fence_, reason, commit_callback("abandon"));
  } else {
    spdlog::warn("{} was lost: {}", name(), reason);
  }
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

std::function<void(Status)> Slot::commit_callback(const char* what) {
  ++commits_pending_;
  return [this, what, fence = *fence_](Status status) {
    loop_.post([this, what, fence, status = std::move(status)] {
      --commits_pending_;
      // The row keeps its last committed state, and the next start recovers it: nothing is lost, but somebody waits.
      if (!status) spdlog::error("{} of {} failed: {}", what, fence.request_id.str(), status.error().message);
      owner_.on_slot_changed();
    });
  };
}

}  // namespace kcoral::scheduler
