// The part of DurableStore that gives queued requests to idle executors, and takes back those that cannot be loaded.
#include <algorithm>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "schema/limits.h"
#include "store/durable_store.h"

namespace kcoral::store {
namespace {

using schema::State;
using AfterCommit = Writer::AfterCommit;

/// Whether what could not be read now may be read later; otherwise it is gone or damaged.
bool is_shortage(const Error& error) {
  const Blame blame = info(error.kind).blame;
  return blame == Blame::kLoad || blame == Blame::kEnvironment;
}

}  // namespace

void DurableStore::serve(ExecutorPool& pool) {
  pool_ = &pool;
  executor_became_idle();
}

void DurableStore::executor_became_idle() {
  is_short_ = false;
  put_backs_are_due_ = true;
  // Whatever is submitted from now on meets the pool as it is; what is on its way may have passed it already. What has
  // arrived is counted before it is on its way no more, so that one of the two looks sees it.
  const bool none_arriving = arriving_ == 0;
  if (none_arriving && queued_ == 0) return;
  writer_->wake();
}

void DurableStore::submit_arrival(Writer::Operation operation) {
  ++arriving_;
  writer_->submit({.apply = [this, apply = std::move(operation.apply)]() -> Result<AfterCommit> {
                     auto applied = apply();
                     if (!applied) return applied;
                     return AfterCommit([this, after = std::move(*applied)] {
                       after();
                       --arriving_;
                     });
                   },
                   .failed =
                       [this, failed = std::move(operation.failed)](const Error& error) {
                         --arriving_;
                         failed(error);
                       },
                   .bytes = operation.bytes});
}

/// A 202 says what the commit made of its request.
void DurableStore::note_assigned(RequestStatus& status, const Assignment& assignment, WallTime now) {
  status.state = State::kAssigned;
  status.attempt = assignment.claimed.claim.fence.attempt;
  status.executor = assignment.executor.name;
  status.started_at = std::max(now, status.submitted_at);
}

Result<AfterCommit> DurableStore::assign_queued() {
  ExecutorPool* const pool = pool_;
  // Left over by a transaction that was lost.
  for (const AssignmentPtr& undone : std::exchange(assigned_, {})) pool->put_back(undone->executor);
  for (const bool for_several_gpus : {false, true}) {
    while (pool != nullptr && !is_short_) {
      auto executor = pool->take(for_several_gpus);
      if (!executor) break;
      failpoint("store.claim.begun");
      const WallTime now = clock_.wall_now();
      auto claimed = requests_->claim_next(*executor, for_several_gpus, now);
      if (!claimed || !*claimed) pool->put_back(*executor);
      if (!claimed) return fail(claimed.error());
      if (!*claimed) break;
      auto assignment = std::make_shared<Assignment>();
      assignment->executor = std::move(*executor);
      assignment->claimed = std::move(**claimed);
      const auto admitted = admitted_.find(assignment->claimed.claim.fence.request_id);
      if (admitted != admitted_.end()) {
        assignment->admitted = admitted->second;
        if (auto& row = admitted->second->row) note_assigned(row->status, *assignment, now);
      }
      assigned_.push_back(std::move(assignment));
      failpoint("store.claim.applied");
    }
  }
  return AfterCommit([this] { on_assigned(); });
}

void DurableStore::on_assigned() {
  admitted_.clear();
  for (AssignmentPtr& assignment : std::exchange(assigned_, {})) {
    failpoint("store.claim.committed");
    --queued_;
    ++in_progress_;
    meters_.queued.observe(assignment->claimed.claim.queued);
    const auto put_backs = put_backs_.find(assignment->claimed.claim.fence.request_id);
    if (put_backs != put_backs_.end()) assignment->put_backs = put_backs->second;
    assignment->token = in_flight_.enter();
    // Closing: the next start takes it up.
    if (!assignment->token) continue;
    {
      const MutexLock lock(loading_mutex_);
      loading_.emplace(assignment->claimed.claim.fence, false);
    }
    service_->post([this, assignment = std::move(assignment)] { load_claim(assignment); });
  }
}

/// Somebody is told in any case, and comes idle again after a pause: that is when it is tried again.
void DurableStore::on_assigning_failed(const Error& error) {
  admitted_.clear();
  ExecutorPool* const pool = pool_;
  const std::vector<AssignmentPtr> told = std::exchange(assigned_, {});
  for (const AssignmentPtr& undone : told) pool->assign(undone->executor, fail(error));
  if (pool == nullptr || queued_ == 0) return;
  for (const bool for_several_gpus : {false, true}) {
    if (!told.empty()) break;
    if (const auto executor = pool->take(for_several_gpus)) pool->assign(*executor, fail(error));
  }
}

void DurableStore::load_claim(const AssignmentPtr& assignment) {
  const Status filled = fill_claim(*assignment);
  failpoint("store.claim.loaded");
  if (hand_over(assignment, filled.has_value())) return;
  if (filled) return end_unstarted(assignment, State::kCancelled, {ErrorKind::kCancelled, "cancelled before it began"});
  const bool may_pass = is_shortage(filled.error()) && assignment->put_backs < limits::kPutBacksMax;
  may_pass ? put_back(assignment, filled.error()) : pass_over(assignment, filled.error());
}

bool DurableStore::hand_over(const AssignmentPtr& assignment, bool is_filled) {
  // Held meanwhile, so that whoever cancels it from now on tells the pool after this.
  const MutexLock lock(loading_mutex_);
  const bool is_cancelled = loading_.extract(assignment->claimed.claim.fence).mapped();
  if (!is_filled || is_cancelled) return false;
  pool_.load()->assign(assignment->executor, std::move(assignment->claimed.claim));
  failpoint("store.claim.handed_over");
  return true;
}

Status DurableStore::fill_claim(Assignment& assignment) {
  RequestTable::Claimed& claimed = assignment.claimed;
  if (assignment.admitted) {
    const Submission& submission = assignment.admitted->submission;
    return fill_claim(claimed.claim, submission.program_text, submission.program.blobs);
  }
  auto reader = readers_->lease();
  if (!reader) return fail(reader.error());
  auto text = (*reader)->program_text(claimed.seq, claimed.program_bytes);
  if (!text) return fail(text.error());
  auto digests = (*reader)->blobs(claimed.seq);
  if (!digests) return fail(digests.error());
  return fill_claim(claimed.claim, *text, *digests);
}

Status DurableStore::fill_claim(Claim& claim, std::string_view program_text, const std::vector<Digest>& blobs) {
  auto program = SealedMemory::copy_of(program_text);
  if (!program) return fail(program.error());
  claim.program = std::move(*program);
  for (const Digest& digest : blobs) {
    auto content = blobs_->load(digest);
    if (!content) return fail(content.error());
    claim.blobs.push_back({digest, std::move(*content)});
  }
  return {};
}

void DurableStore::pass_over(const AssignmentPtr& assignment, const Error& error) {
  const ErrorKind kind = is_shortage(error) ? ErrorKind::kEnvironment : ErrorKind::kEngine;
  const std::string reason = fmt::format("what it needs to run cannot be read: {}", error.message);
  spdlog::error("request {}: {}", assignment->claimed.claim.fence.request_id.str(), reason);
  end_unstarted(assignment, State::kFailed, {kind, reason});
}

void DurableStore::end_unstarted(const AssignmentPtr& assignment, State state, const Error& error) {
  auto ending = std::make_shared<Ending>();
  ending->fence = assignment->claimed.claim.fence;
  ending->ended.completion = completion_with_error(ending->fence.request_id, state, error, error.message);
  ending->token = assignment->token;
  ending->done = [this, assignment](const Status& ended) {
    if (!ended) return put_back(assignment, ended.error());
    pool_.load()->put_back(assignment->executor);
    executor_became_idle();
  };
  end(std::move(ending));
}

/// Nothing is assigned until an executor comes idle: whoever was given it at once would meet the same shortage.
void DurableStore::put_back(const AssignmentPtr& assignment, const Error& error) {
  is_short_ = true;
  // In the queue from now on, as everybody else sees it: whoever claims next finds the row saying so, too.
  --in_progress_;
  ++queued_;
  undo_claim({assignment->claimed.claim.fence, error.message}, assignment->token, [this, assignment, error] {
    ++put_backs_[assignment->claimed.claim.fence.request_id];
    pool_.load()->assign(assignment->executor, fail(error));
  });
}

void DurableStore::give_back(const Fence& fence, std::string reason) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return;  // the next start takes it up
  --in_progress_;
  ++queued_;
  undo_claim({fence, std::move(reason)}, std::move(token), [] {});
}

void DurableStore::undo_claim(PutBack put_back, InFlight::Token token, std::function<void()> done) {
  const auto shared = std::make_shared<const PutBack>(std::move(put_back));
  const auto cancelled = std::make_shared<Ended>(cancelled_end(shared->fence.request_id, "cancelled before it began"));
  submit_arrival({.apply = [this, shared, cancelled, done, token]() -> Result<AfterCommit> {
                    auto undone = requests_->unclaim(shared->fence, shared->reason, *cancelled, clock_.wall_now());
                    if (!undone) return fail(undone.error());
                    return AfterCommit([this, shared, cancelled, done, token, undone = *undone] {
                      if (undone == RequestTable::GivenUp::kQueued) meters_.requeued_unstarted.add();
                      if (undone == RequestTable::GivenUp::kCancelled) {
                        --queued_;
                        on_ended(shared->fence.request_id, *cancelled);
                      }
                      done();
                    });
                  },
                  .failed =
                      [this, shared, done, token](const Error& why) {
                        spdlog::warn("request {} cannot be put back into the queue yet: {}",
                                     shared->fence.request_id.str(), why.message);
                        put_backs_delayed_.push_back(*shared);
                        done();
                      },
                  .bytes = 0});
}

/// Whoever comes idle brings those along that found no room on the disk.
void DurableStore::retry_put_backs() {
  if (!put_backs_are_due_.exchange(false)) return;
  for (PutBack& delayed : std::exchange(put_backs_delayed_, {})) {
    InFlight::Token token = in_flight_.enter();
    if (!token) return;  // the next start finds it
    undo_claim(std::move(delayed), std::move(token), [] {});
  }
}

}  // namespace kcoral::store
