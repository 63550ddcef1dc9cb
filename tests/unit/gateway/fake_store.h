// A store without a disk. Callbacks run on a thread of its own, as a real store's do.
//
// It can: refuse or miss an admission (`on_admit`), answer at once (`on_run`) or when the test says so (`answer`), let
// a request run (`change`), lose its answer (`prune`), say what a test has put into it (`page`, `records`,
// `on_output`), hold all its callbacks back (`hold`).
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <unordered_map>

#include "base/mutex.h"
#include "store/store.h"

namespace kcoral::gateway {

class FakeStore final : public store::Store {
 public:
  using AdmitFunction = std::function<Result<store::Admission>(const store::Submission&)>;
  using RunFunction = std::function<AnswerPtr(const store::Submission&)>;

  FakeStore() : thread_([this] { run(); }) {}
  ~FakeStore() override { close(); }

  /// Both are called on the store's thread. Set before the first request.
  AdmitFunction on_admit;  // unset: admitted, attached or kConflict, as what was submitted before demands
  RunFunction on_run;      // unset: requests stay queued

  /// What is found by whoever asks. Set before.
  store::HistoryPage page;
  std::vector<std::string> records;
  std::function<Result<store::OutputPiece>(store::OutputStream, uint64_t offset)> on_output;

  static AnswerPtr document(std::string text) {
    return std::make_shared<const schema::Answer>(schema::make_result_answer(std::move(text), {}));
  }

  void answer(const Uuid& id, AnswerPtr answer, schema::State state = schema::State::kCompleted) {
    post([this, id, answer = std::move(answer), state] { settle(id, answer, state); });
  }
  /// Changes what is known of an admitted request.
  void change(const Uuid& id, std::function<void(store::RequestStatus&)> how) {
    const MutexLock lock(mutex_);
    how(statuses_.at(id));
  }
  void start(const Uuid& id) {
    change(id, [](store::RequestStatus& status) { status.state = schema::State::kRunning; });
  }
  /// From here on its answer is gone.
  void prune(const Uuid& id) {
    const MutexLock lock(mutex_);
    answers_.at(id) = nullptr;
  }
  /// While held, no callback runs.
  void hold(bool held) {
    const MutexLock lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }

  /// How often `admit` was called, held or not.
  size_t asked() const {
    const MutexLock lock(mutex_);
    return asked_;
  }
  size_t watching() const {
    const MutexLock lock(mutex_);
    return watches_.size();
  }
  size_t admitted() const {
    const MutexLock lock(mutex_);
    return submissions_.size();
  }
  std::vector<store::Submission> submissions() const {
    const MutexLock lock(mutex_);
    return submissions_;
  }
  std::vector<Uuid> rejected() const {
    const MutexLock lock(mutex_);
    return rejected_;
  }
  using Cancellation = std::pair<Uuid, store::CancelBy>;
  std::vector<Cancellation> cancellations() const {
    const MutexLock lock(mutex_);
    return cancellations_;
  }
  std::vector<store::HistoryQuery> history_queries() const {
    const MutexLock lock(mutex_);
    return history_queries_;
  }
  /// Waits for something that another thread brings about; fails the test after a generous while.
  template <typename Condition>
  void wait_until(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const MutexLock lock(wait_mutex_);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "the condition did not come true";
      (void)happened_.wait_until(wait_mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    }
  }

  // --- store::Store ---

  void admit(store::Submission submission, std::function<void(Result<store::Admission>)> done) override {
    {
      const MutexLock lock(mutex_);
      ++asked_;
    }
    post([this, submission = std::move(submission), done = std::move(done)]() mutable {
      auto admission = on_admit ? on_admit(submission) : enter(submission);
      const bool runs = admission && admission->kind != store::Admission::Kind::kCacheMiss;
      if (runs) record(submission);
      done(std::move(admission));
      if (runs && on_run) {
        if (auto outcome = on_run(submission)) settle(submission.request_id, std::move(outcome));
      }
    });
  }

  WatchId watch(const Uuid& request_id, std::function<void(Result<AnswerPtr>)> done) override {
    return add_watch(request_id, std::move(done));
  }
  WatchId watch_end(const Uuid& request_id, std::function<void(Status)> done) override {
    return add_watch(request_id, [done = std::move(done)](const Result<AnswerPtr>& answer) {
      // It does not need the answer.
      done(answer || answer.error().kind == ErrorKind::kGone ? Status() : fail(answer.error()));
    });
  }

  void unwatch(WatchId id) override {
    const MutexLock calling(calling_mutex_);  // waits for a callback that is running
    const MutexLock lock(mutex_);
    watches_.erase(id);
    happened_.notify_all();
  }

  void reject_if_queued(const Uuid& request_id, AnswerPtr answer, std::string) override {
    post([this, request_id, answer = std::move(answer)] {
      {
        const MutexLock lock(mutex_);
        if (answers_.contains(request_id)) return;
        rejected_.push_back(request_id);
      }
      settle(request_id, answer, schema::State::kRejected);
    });
  }

  void cancel(const Uuid& request_id, store::CancelBy by, std::function<void(Result<schema::State>)> done) override {
    post([this, request_id, by, done = std::move(done)] {
      auto state = record_cancellation(request_id, by);
      if (state == schema::State::kQueued) {
        settle(request_id, document("{}"), schema::State::kCancelled);
        state = schema::State::kCancelled;
      }
      done(state);
    });
  }

  void status(const Uuid& request_id, std::function<void(Result<store::RequestStatus>)> done) override {
    post([this, request_id, done = std::move(done)] { done(find(request_id)); });
  }
  void history(const store::HistoryQuery& query, std::function<void(Result<store::HistoryPage>)> done) override {
    post([this, query, done = std::move(done)] {
      {
        const MutexLock lock(mutex_);
        history_queries_.push_back(query);
      }
      done(page);
    });
  }
  void program(const Uuid& request_id, std::function<void(Result<std::string>)> done) override {
    post([this, request_id, done = std::move(done)] {
      const auto status = find(request_id);
      if (!status) return done(fail(status.error()));
      for (const auto& submission : submissions()) {
        if (submission.request_id == request_id) return done(submission.program_text);
      }
    });
  }
  void audit(const Uuid& request_id, std::function<void(Result<std::vector<std::string>>)> done) override {
    post([this, request_id, done = std::move(done)] {
      const auto status = find(request_id);
      if (!status) return done(fail(status.error()));
      done(records);
    });
  }
  void output(const Uuid& request_id, store::OutputStream stream, uint64_t offset,
              std::function<void(Result<store::OutputPiece>)> done) override {
    post([this, request_id, stream, offset, done = std::move(done)] {
      const auto status = find(request_id);
      if (!status) return done(fail(status.error()));
      done(on_output(stream, offset));
    });
  }

  void serve(store::ExecutorPool&) override {}
  void executor_became_idle() override {}
  void give_back(const store::Fence&, std::string) override {}
  void mark_running(const store::Fence&, int) override {}
  void note_gpus(const store::Fence&, std::vector<int>) override {}
  void note_output(const store::Fence&, store::OutputStream, std::shared_ptr<const UniqueFd>) override {}
  void append_audit(const store::Fence&, std::vector<store::AuditRecord>) override {}
  void finish(const store::Fence&, store::Completion, std::function<void(Status)>) override {}
  void abandon(const store::Fence&, std::string, std::function<void(Status)>) override {}
  Status recover() override { return {}; }
  Result<store::BackupSummary> back_up(const std::string&, const store::BackupProgress&) override { return {}; }
  store::Counts counts() const override { return {}; }
  store::Figures figures() const override { return {}; }

  void close() override {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
      held_ = false;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Watch {
    Uuid request_id;
    std::function<void(Result<AnswerPtr>)> done;
  };

  Result<store::Admission> enter(const store::Submission& submission) {
    using Kind = store::Admission::Kind;
    const MutexLock lock(mutex_);
    const auto known = statuses_.find(submission.request_id);
    if (known == statuses_.end()) return store::Admission{Kind::kAdmitted, {}};
    if (known->second.program_sha256 == submission.program_sha256) return store::Admission{Kind::kAttached, {}};
    return fail(ErrorKind::kConflict, "this id was used for another program");
  }

  void record(const store::Submission& submission) {
    const MutexLock lock(mutex_);
    submissions_.push_back(submission);
    store::RequestStatus status;
    status.request_id = submission.request_id;
    status.client = submission.client;
    status.max_attempts = submission.max_attempts;
    status.program_sha256 = submission.program_sha256;
    statuses_.emplace(submission.request_id, std::move(status));
  }

  Result<store::RequestStatus> find(const Uuid& request_id) const {
    const MutexLock lock(mutex_);
    const auto known = statuses_.find(request_id);
    if (known == statuses_.end()) return fail(ErrorKind::kNotFound, "request {} is not known", request_id.str());
    return known->second;
  }

  /// The state that it is in, unless it has ended otherwise.
  Result<schema::State> record_cancellation(const Uuid& request_id, store::CancelBy by) {
    {
      const MutexLock lock(mutex_);
      cancellations_.emplace_back(request_id, by);
    }
    const auto status = find(request_id);
    if (!status) return fail(status.error());
    if (status->state != schema::State::kCancelled && schema::is_terminal(status->state)) {
      return fail(ErrorKind::kConflict, "the request has ended as {}", schema::wire_name(status->state));
    }
    return status->state;
  }

  WatchId add_watch(const Uuid& request_id, std::function<void(Result<AnswerPtr>)> done) {
    WatchId id;
    {
      const MutexLock lock(mutex_);
      id = next_watch_++;
      watches_.emplace(id, Watch{request_id, std::move(done)});
    }
    happened_.notify_all();
    post([this, request_id] { notify(request_id); });
    return id;
  }

  void post(std::function<void()> what) {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(what));
    changed_.notify_all();
  }

  void run() {
    while (auto next = take_next()) {
      next();
      next = nullptr;
      happened_.notify_all();
    }
  }

  /// Null once it is closed and nothing waits.
  std::function<void()> take_next() {
    const MutexLock lock(mutex_);
    while (!closed_ && (queue_.empty() || held_)) changed_.wait(mutex_);
    if (queue_.empty()) return nullptr;
    auto next = std::move(queue_.front());
    queue_.pop_front();
    return next;
  }

  void settle(const Uuid& id, AnswerPtr answer, schema::State state = schema::State::kCompleted) {
    {
      const MutexLock lock(mutex_);
      answers_.emplace(id, std::move(answer));
      statuses_[id].state = state;
    }
    notify(id);
  }

  /// Calls the watches of `id` if it is settled.
  void notify(const Uuid& id) KCORAL_EXCLUDES(mutex_) {
    const MutexLock calling(calling_mutex_);
    std::vector<std::function<void(Result<AnswerPtr>)>> due;
    AnswerPtr answer;
    {
      const MutexLock lock(mutex_);
      const auto found = answers_.find(id);
      if (found == answers_.end()) return;
      answer = found->second;
      for (auto each = watches_.begin(); each != watches_.end();) {
        if (each->second.request_id == id) {
          due.push_back(std::move(each->second.done));
          each = watches_.erase(each);
        } else {
          ++each;
        }
      }
    }
    for (auto& done : due) {
      if (answer != nullptr) {
        done(answer);
      } else {
        done(fail(ErrorKind::kGone, "its answer was pruned"));
      }
    }
  }

  mutable Mutex mutex_;
  Mutex calling_mutex_;  // held while watch callbacks run; taken before mutex_
  ConditionVariable changed_;
  Mutex wait_mutex_;
  ConditionVariable happened_;
  std::deque<std::function<void()>> queue_ KCORAL_GUARDED_BY(mutex_);
  std::map<WatchId, Watch> watches_ KCORAL_GUARDED_BY(mutex_);
  std::unordered_map<Uuid, AnswerPtr> answers_ KCORAL_GUARDED_BY(mutex_);  // null: pruned
  std::unordered_map<Uuid, store::RequestStatus> statuses_ KCORAL_GUARDED_BY(mutex_);
  std::vector<store::Submission> submissions_ KCORAL_GUARDED_BY(mutex_);
  std::vector<Uuid> rejected_ KCORAL_GUARDED_BY(mutex_);
  std::vector<Cancellation> cancellations_ KCORAL_GUARDED_BY(mutex_);
  std::vector<store::HistoryQuery> history_queries_ KCORAL_GUARDED_BY(mutex_);
  WatchId next_watch_ KCORAL_GUARDED_BY(mutex_) = 1;
  size_t asked_ KCORAL_GUARDED_BY(mutex_) = 0;
  bool held_ KCORAL_GUARDED_BY(mutex_) = false;
  bool closed_ KCORAL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kcoral::gateway
