// An Executor without a process, for tests of whoever uses one. It answers on the loop like the real one (never from
// within `run`), and can play these faults, one for each run:
//
//   kNone                answers with what `answer` returns
//   kHang                runs until it is cancelled or told to die
//   kHangIgnoringCancel  runs on whatever it is told
//   kDieBeforeRunning    is lost before on_running
//   kDieWhileRunning     is lost after on_running
//   kBreakForGood        is lost while running, permanently
//   kOutcomeAfterCancel  hangs; a cancel comes too late: the program completes
//   kAnswerTwice         sends its outcome twice (a broken executor; users must not answer twice)
//   kSlowAftermath       answers, but comes idle only when told (`become_idle`)
//   kQuarantine          answers, but leaves processes that cannot be ended; comes idle only when told
//   kLateRecords         answers, then sends an audit record before it is idle
//
// Belongs to its loop's thread, like every Executor.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "executor/executor.h"

namespace kcoral::executor {

enum class Fault {
  kNone,
  kHang,
  kHangIgnoringCancel,
  kDieBeforeRunning,
  kDieWhileRunning,
  kBreakForGood,
  kOutcomeAfterCancel,
  kAnswerTwice,
  kSlowAftermath,
  kQuarantine,
  kLateRecords,
};

class FakeExecutor : public Executor {
 public:
  using Answer = std::function<RunReport(const Assignment& assignment)>;

  FakeExecutor(EventLoop& loop, std::string name, Answer answer)
      : loop_(loop), name_(std::move(name)), answer_(std::move(answer)) {}

  /// The fault of the next run; they queue up. Without one: kNone.
  void play(Fault fault) { faults_.push_back(fault); }

  /// Whether `start` brings it to idle at once (the default), or `become_idle` must.
  bool idle_at_start = true;
  /// Whether it comes idle by itself after it was lost.
  bool recovers = true;
  std::vector<int> devices_seen;
  ExecutorInfo info{"/usr/bin/python3", {{"python", "3.11.2"}}};

  // What it was told, in order.
  std::vector<Assignment> assignments;
  std::vector<Uuid> cancels;
  std::vector<std::pair<uint64_t, std::vector<int>>> grants;
  std::vector<std::pair<uint64_t, std::string>> denials;
  std::vector<Uuid> device_holders;

  bool is_running() const { return running_.has_value(); }
  void become_idle() {
    post([this] { events_->on_idle(info); });
  }
  /// Dies now, whatever it is doing.
  void die(std::string reason, bool permanent = false) {
    post([this, reason = std::move(reason), permanent] { lose(reason, permanent); });
  }
  /// Ends a hanging run with its answer.
  void finish() {
    post([this] {
      if (running_) complete();
    });
  }

  const std::string& name() const override { return name_; }
  int pid() const override { return 4000; }
  const std::vector<int>& devices() const override { return devices_seen; }

  void start(ExecutorEvents& events) override {
    events_ = &events;
    if (idle_at_start) become_idle();
  }

  void run(Assignment assignment) override {
    KCORAL_CHECK(!running_);
    assignments.push_back(assignment);
    running_ = std::move(assignment);
    fault_ = Fault::kNone;
    if (!faults_.empty()) {
      fault_ = faults_.front();
      faults_.pop_front();
    }
    post([this] { begin(); });
  }

  /// The running program has begun to print, as the process would say.
  void show_output(OutputStream stream, std::shared_ptr<const UniqueFd> memory) {
    post([this, stream, memory = std::move(memory)] { events_->on_output(stream, memory); });
  }
  /// Asks for a lease, or ends one, as the process would.
  void ask_lease(LeaseAsk ask) {
    post([this, ask = std::move(ask)] { events_->on_lease_asked(ask); });
  }
  void end_lease(uint64_t id, bool processes_ended = false) {
    post([this, id, processes_ended] { events_->on_lease_ended(id, processes_ended); });
  }
  void grant_lease(uint64_t id, const std::vector<int>& devices) override { grants.emplace_back(id, devices); }
  void deny_lease(uint64_t id, const std::string& message) override { denials.emplace_back(id, message); }
  void tell_device_holder(const Uuid& request_id) override { device_holders.push_back(request_id); }

  void cancel(const Uuid& request_id) override {
    cancels.push_back(request_id);
    post([this, request_id] {
      if (!running_ || running_->request_id != request_id || fault_ == Fault::kHangIgnoringCancel) return;
      if (fault_ == Fault::kOutcomeAfterCancel) return complete();
      RunReport report;
      report.ending = schema::Outcome::Ending::kCancelled;
      report.error_message = "cancelled";
      report.results_summary = "[]";
      end_with(std::move(report));
    });
  }

 private:
  void begin() {
    if (!running_) return;
    if (fault_ == Fault::kDieBeforeRunning) return lose("the executor process ended (signal 9 (SIGKILL))", false);
    events_->on_running(4242);
    if (fault_ == Fault::kDieWhileRunning) return lose("the executor process ended (signal 9 (SIGKILL))", false);
    if (fault_ == Fault::kBreakForGood) return lose("the sandbox does not work here", true);
    if (fault_ == Fault::kHang || fault_ == Fault::kHangIgnoringCancel || fault_ == Fault::kOutcomeAfterCancel) return;
    complete();
  }

  void complete() { end_with(answer_(*running_)); }

  void end_with(RunReport report) {
    const Fault fault = std::exchange(fault_, Fault::kNone);
    running_.reset();
    events_->on_outcome(report);
    if (fault == Fault::kAnswerTwice) events_->on_outcome(report);
    if (fault == Fault::kLateRecords) {
      events_->on_records({{loop_.clock().wall_now(), R"("event":"process_exited","signal":9)"}});
    }
    if (fault == Fault::kQuarantine) return events_->on_quarantined("processes could not be ended");
    if (fault != Fault::kSlowAftermath) become_idle();
  }

  void lose(const std::string& reason, bool permanent) {
    running_.reset();
    events_->on_lost(reason, permanent);
    if (recovers && !permanent) become_idle();
  }

  /// Posted functions of a destroyed FakeExecutor do nothing.
  void post(std::function<void()> function) {
    loop_.post([alive = std::weak_ptr<const bool>(alive_), function = std::move(function)] {
      if (!alive.expired()) function();
    });
  }

  EventLoop& loop_;
  std::string name_;
  Answer answer_;
  ExecutorEvents* events_ = nullptr;
  std::optional<Assignment> running_;
  Fault fault_ = Fault::kNone;
  std::deque<Fault> faults_;
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace kcoral::executor
