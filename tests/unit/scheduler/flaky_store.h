// A Store that forwards everything, and can refuse to commit outcomes as a full disk would make it, or cancel what it
// has just assigned. It notes what it is told of running programs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "store/store.h"

namespace kcoral::scheduler {

/// A pool that forwards everything, and can cancel each run as soon as it is assigned.
class CancellingPool : public store::ExecutorPool {
 public:
  CancellingPool(store::ExecutorPool& real, bool cancels_at_once) : real_(real), cancels_at_once_(cancels_at_once) {}

  std::optional<store::ExecutorRef> take(bool for_several_gpus) override { return real_.take(for_several_gpus); }
  void put_back(const store::ExecutorRef& executor) override { real_.put_back(executor); }
  void assign(const store::ExecutorRef& executor, Result<store::Claim> claim) override {
    const std::optional<store::Fence> fence = claim ? std::optional(claim->fence) : std::nullopt;
    real_.assign(executor, std::move(claim));
    if (cancels_at_once_ && fence) real_.cancel(*fence);
  }
  void cancel(const store::Fence& fence) override { real_.cancel(fence); }

 private:
  store::ExecutorPool& real_;
  const bool cancels_at_once_;
};

class FlakyStore : public store::Store {
 public:
  explicit FlakyStore(store::Store& real) : real_(real) {}

  /// How many of the next `finish` fail.
  std::atomic<int> failures{0};

  /// Whom it serves.
  std::atomic<store::ExecutorPool*> pool{nullptr};
  /// Whether each run is cancelled as soon as it is assigned. To be said before it serves anybody.
  bool cancels_at_once = false;

  struct OutputNote {
    store::Fence fence;
    store::OutputStream stream;
    std::shared_ptr<const UniqueFd> memory;
  };
  // On the scheduler's loop only.
  std::vector<std::pair<store::Fence, std::vector<int>>> gpu_notes;
  std::vector<OutputNote> output_notes;

  /// How often it was told that somebody is idle.
  int idle_words() const {
    const MutexLock lock(mutex_);
    return idle_words_;
  }
  /// False if that was not more than `before` times by then.
  bool wait_for_idle_word(int before, SteadyTime deadline) {
    const MutexLock lock(mutex_);
    while (idle_words_ == before && told_.wait_until(mutex_, deadline)) {
    }
    return idle_words_ > before;
  }

  void finish(const store::Fence& fence, store::Completion completion, std::function<void(Status)> done) override {
    if (failures > 0) {
      --failures;
      return done(fail(ErrorKind::kBusy, "no space is left on the disk"));
    }
    real_.finish(fence, std::move(completion), std::move(done));
  }

  void admit(store::Submission submission, std::function<void(Result<store::Admission>)> done) override {
    real_.admit(std::move(submission), std::move(done));
  }
  WatchId watch(const Uuid& request_id, std::function<void(Result<AnswerPtr>)> done) override {
    return real_.watch(request_id, std::move(done));
  }
  void unwatch(WatchId id) override { real_.unwatch(id); }
  void reject_if_queued(const Uuid& request_id, AnswerPtr answer, std::string reason) override {
    real_.reject_if_queued(request_id, std::move(answer), std::move(reason));
  }
  void serve(store::ExecutorPool& executors) override {
    served_ = std::make_unique<CancellingPool>(executors, cancels_at_once);
    pool = served_.get();
    real_.serve(*served_);
  }
  void executor_became_idle() override {
    {
      const MutexLock lock(mutex_);
      ++idle_words_;
    }
    told_.notify_all();
    real_.executor_became_idle();
  }
  void give_back(const store::Fence& fence, std::string reason) override { real_.give_back(fence, std::move(reason)); }
  void mark_running(const store::Fence& fence, int pid) override { real_.mark_running(fence, pid); }
  void append_audit(const store::Fence& fence, std::vector<store::AuditRecord> records) override {
    real_.append_audit(fence, std::move(records));
  }
  void abandon(const store::Fence& fence, std::string reason, std::function<void(Status)> done) override {
    real_.abandon(fence, std::move(reason), std::move(done));
  }
  Status recover() override { return real_.recover(); }
  Result<store::BackupSummary> back_up(const std::string& directory, const store::BackupProgress& progress) override {
    return real_.back_up(directory, progress);
  }
  store::Counts counts() const override { return real_.counts(); }
  store::Figures figures() const override { return real_.figures(); }
  WatchId watch_end(const Uuid& request_id, std::function<void(Status)> done) override {
    return real_.watch_end(request_id, std::move(done));
  }
  void cancel(const Uuid& request_id, store::CancelBy by, std::function<void(Result<schema::State>)> done) override {
    real_.cancel(request_id, by, std::move(done));
  }
  void note_gpus(const store::Fence& fence, std::vector<int> gpu_ids) override {
    gpu_notes.emplace_back(fence, gpu_ids);
    real_.note_gpus(fence, std::move(gpu_ids));
  }
  void note_output(const store::Fence& fence, store::OutputStream stream,
                   std::shared_ptr<const UniqueFd> memory) override {
    output_notes.push_back({fence, stream, memory});
    real_.note_output(fence, stream, std::move(memory));
  }
  void status(const Uuid& request_id, std::function<void(Result<store::RequestStatus>)> done) override {
    real_.status(request_id, std::move(done));
  }
  void history(const store::HistoryQuery& query, std::function<void(Result<store::HistoryPage>)> done) override {
    real_.history(query, std::move(done));
  }
  void program(const Uuid& request_id, std::function<void(Result<std::string>)> done) override {
    real_.program(request_id, std::move(done));
  }
  void audit(const Uuid& request_id, std::function<void(Result<std::vector<std::string>>)> done) override {
    real_.audit(request_id, std::move(done));
  }
  void output(const Uuid& request_id, store::OutputStream stream, uint64_t offset,
              std::function<void(Result<store::OutputPiece>)> done) override {
    real_.output(request_id, stream, offset, std::move(done));
  }
  void close() override { real_.close(); }

 private:
  store::Store& real_;
  std::unique_ptr<CancellingPool> served_;
  mutable Mutex mutex_;
  ConditionVariable told_;
  int idle_words_ KCORAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kcoral::scheduler
