// The scheduler over the real store, with executors that play faults.
#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "executor/fake_executor.h"
#include "tests/unit/scheduler/fake_clearance.h"
#include "tests/unit/scheduler/flaky_store.h"
#include "tests/unit/scheduler/reports.h"

namespace kcoral::scheduler {
namespace {

using namespace std::chrono_literals;
using executor::Fault;
using schema::State;

// For conditions that come without a clock of ours: generous, since these machines are noisy.
constexpr auto kPatience = 30s;

class SchedulerTest : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/kcoral-scheduler-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    store_ = std::move(*store::open_store({directory_ + "/data"}, Clock::system()));
    flaky_ = std::make_unique<FlakyStore>(*store_);
    loop_ = std::move(*EventLoop::create());
  }

  void TearDown() override {
    if (loop_thread_.joinable()) {
      loop_->stop();
      loop_thread_.join();
    }
    store_->close();
    scheduler_.reset();
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  /// Makes the scheduler over `slots` fakes; the loop is not running yet, so that faults can be set.
  void make(int slots, SchedulerConfig config = {}) {
    std::vector<std::unique_ptr<executor::Executor>> executors;
    for (int i = 0; i < slots; ++i) {
      auto fake = std::make_unique<executor::FakeExecutor>(*loop_, "executor-" + std::to_string(i),
                                                           [](const auto&) { return completed_report(); });
      fake->devices_seen = config.devices;
      fakes_.push_back(fake.get());
      executors.push_back(std::move(fake));
    }
    scheduler_ = std::make_unique<Scheduler>(std::move(executors), *flaky_, *loop_, std::move(config));
    ASSERT_TRUE(store_->recover());
  }

  /// Starts the scheduler and the loop; says whether every slot became ready.
  Status start() {
    std::promise<Status> started;
    loop_->post([&] {
      scheduler_->start({[&](const executor::ExecutorInfo&) { started.set_value({}); },
                         [this, &started](Error error) {
                           if (is_started_) {
                             unable_.set_value(std::move(error));
                           } else {
                             started.set_value(fail(std::move(error)));
                           }
                         }});
    });
    loop_thread_ = std::thread([this] { loop_->run(); });
    Status status = started.get_future().get();
    on_loop([&] { is_started_ = true; });
    return status;
  }

  /// Runs `function` on the loop and waits for it.
  template <typename Function>
  void on_loop(Function function) {
    std::promise<void> done;
    loop_->post([&] {
      function();
      done.set_value();
    });
    done.get_future().get();
  }

  Uuid submit(int priority = 0, int max_attempts = 1) {
    const std::string text = fmt::format(
        R"({{"instructions":[{{"op":"upload","id":"m","kind":"module","source":""}}],"options":{{"priority":{}}}}})",
        priority);
    store::Submission submission;
    submission.request_id = Uuid::random();
    submission.client = "test";
    submission.max_attempts = max_attempts;
    submission.program_text = text;
    submission.program_sha256 = Sha256::of(text);
    submission.program = *schema::parse_program(text, {});
    const Uuid id = submission.request_id;
    std::promise<Result<store::Admission>> done;
    store_->admit(std::move(submission), [&](auto admission) { done.set_value(std::move(admission)); });
    const auto admission = done.get_future().get();
    EXPECT_TRUE(admission && admission->kind == store::Admission::Kind::kAdmitted);
    return id;
  }

  store::Store::AnswerPtr answer_of(const Uuid& id) {
    auto answered = std::make_shared<std::promise<Result<store::Store::AnswerPtr>>>();
    auto future = answered->get_future();
    store_->watch(id, [answered](auto answer) { answered->set_value(std::move(answer)); });
    EXPECT_EQ(future.wait_for(kPatience), std::future_status::ready) << "no answer for " << id.str();
    return *future.get();
  }

  /// What a look-up of the store calls back with.
  template <typename T>
  static T found(const std::function<void(std::function<void(Result<T>)> done)>& look_up) {
    auto result = std::make_shared<std::promise<Result<T>>>();
    auto future = result->get_future();
    look_up([result](Result<T> found) { result->set_value(std::move(found)); });
    EXPECT_EQ(future.wait_for(kPatience), std::future_status::ready) << "nothing was called back";
    return *future.get();
  }
  store::RequestStatus status_of(const Uuid& id) {
    return found<store::RequestStatus>([&](auto done) { store_->status(id, std::move(done)); });
  }
  State state_of(const Uuid& id) { return status_of(id).state; }

  std::vector<std::string> events_of(const Uuid& id) {
    const auto records = found<std::vector<std::string>>([&](auto done) { store_->audit(id, std::move(done)); });
    std::vector<std::string> events;
    for (const std::string& record : records) events.push_back(nlohmann::json::parse(record)["event"]);
    return events;
  }

  /// Submits a request, which the first slot runs until somebody ends it.
  Uuid run_hanging(Fault fault = Fault::kHang, int max_attempts = 1) {
    on_loop([&] { fakes_[0]->play(fault); });
    const Uuid id = submit(0, max_attempts);
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (bool runs = false; !runs && std::chrono::steady_clock::now() < deadline;) {
      on_loop([&] { runs = fakes_[0]->is_running(); });
    }
    return id;
  }
  std::vector<Uuid> cancels_of(size_t slot) {
    std::vector<Uuid> cancels;
    on_loop([&] { cancels = fakes_.at(slot)->cancels; });
    return cancels;
  }

  std::string directory_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<FlakyStore> flaky_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<executor::FakeExecutor*> fakes_;
  std::thread loop_thread_;
  bool is_started_ = false;     // the loop's thread only
  std::promise<Error> unable_;  // after the start
};

TEST_F(SchedulerTest, RunsWhatWasQueuedBeforeItStartedAndWhatComesLater) {
  make(1);
  const Uuid early = submit();
  ASSERT_TRUE(start());
  EXPECT_EQ(answer_of(early)->http_status, 200);
  const Uuid late = submit();
  EXPECT_EQ(answer_of(late)->http_status, 200);
  EXPECT_EQ(state_of(late), State::kCompleted);
}

TEST_F(SchedulerTest, SaysHowManyExecutorsAreInWhichState) {
  using testing::Contains;
  using testing::Pair;
  make(3);
  EXPECT_THAT(scheduler_->executor_states(), Contains(Pair("starting", 3)));
  ASSERT_TRUE(start());
  EXPECT_THAT(scheduler_->executor_states(), Contains(Pair("idle", 3)));
  const Uuid id = run_hanging();
  EXPECT_THAT(scheduler_->executor_states(), testing::IsSupersetOf({Pair("idle", 2), Pair("running", 1)}));
  on_loop([&] { fakes_[0]->cancel(id); });
  answer_of(id);
}

TEST_F(SchedulerTest, HigherPrioritiesFirstThenInOrder) {
  make(1);
  const Uuid low = submit(-1), first = submit(0), second = submit(0), high = submit(5);
  ASSERT_TRUE(start());
  answer_of(low);
  std::vector<Uuid> order;
  on_loop([&] {
    for (const auto& assignment : fakes_[0]->assignments) order.push_back(assignment.request_id);
  });
  EXPECT_EQ(order, (std::vector{high, first, second, low}));
}

TEST_F(SchedulerTest, AFreeSlotTakesWhatABusyOneCannot) {
  make(2);
  fakes_[0]->play(Fault::kHang);
  fakes_[1]->play(Fault::kHang);
  const Uuid hanging = submit();
  ASSERT_TRUE(start());
  // Whichever slot hangs, the other one answers the rest, once its own hanging run has been ended.
  const Uuid other = submit();
  for (bool both_run = false; !both_run;) {
    on_loop([&] { both_run = fakes_[0]->is_running() && fakes_[1]->is_running(); });
  }
  on_loop([&] { fakes_[0]->finish(); });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(answer_of(submit())->http_status, 200);
  on_loop([&] { fakes_[1]->finish(); });
  EXPECT_EQ(answer_of(hanging)->http_status, 200);
  EXPECT_EQ(answer_of(other)->http_status, 200);
}

TEST_F(SchedulerTest, ALostRunIsInterruptedWithoutAndRunAgainWithAttempts) {
  make(1);
  fakes_[0]->play(Fault::kDieWhileRunning);
  fakes_[0]->play(Fault::kDieBeforeRunning);
  const Uuid once = submit(1, 1);
  const Uuid twice = submit(0, 2);
  ASSERT_TRUE(start());
  EXPECT_EQ(answer_of(once)->http_status, 500);
  EXPECT_EQ(state_of(once), State::kInterrupted);
  EXPECT_EQ(answer_of(twice)->http_status, 200);
  EXPECT_EQ(status_of(twice).attempt, 2);
  const std::vector<std::string> events = events_of(twice);
  EXPECT_EQ(events, (std::vector<std::string>{"admitted", "queued", "assigned", "requeued", "assigned", "running",
                                              "finished"}));
}

TEST_F(SchedulerTest, ASecondOutcomeChangesNothing) {
  make(1);
  fakes_[0]->play(Fault::kAnswerTwice);
  const Uuid id = submit();
  ASSERT_TRUE(start());
  const auto answer = answer_of(id);
  EXPECT_EQ(answer_of(submit())->http_status, 200);
  EXPECT_EQ(answer_of(id)->document, answer->document);
  EXPECT_EQ(events_of(id), (std::vector<std::string>{"admitted", "queued", "assigned", "running", "finished"}));
}

TEST_F(SchedulerTest, RecordsThatComeAfterTheOutcomeAreKept) {
  make(1);
  fakes_[0]->play(Fault::kLateRecords);
  const Uuid id = submit();
  ASSERT_TRUE(start());
  answer_of(id);
  answer_of(submit());  // the slot was idle again, so the late record is with the store
  // Before or after "finished": the answer's content is stored meanwhile. The store writes it down a moment later.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::vector<std::string> events = events_of(id);
  for (; std::find(events.begin(), events.end(), "process_exited") == events.end(); events = events_of(id)) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
}

TEST_F(SchedulerTest, ASlotThatIsStillClearingTakesNothing) {
  make(1);
  fakes_[0]->play(Fault::kSlowAftermath);
  const Uuid first = submit();
  ASSERT_TRUE(start());
  answer_of(first);
  const Uuid second = submit();
  size_t assigned = 0;
  on_loop([&] { assigned = fakes_[0]->assignments.size(); });
  EXPECT_EQ(assigned, 1u);
  EXPECT_EQ(state_of(second), State::kQueued);
  on_loop([&] { fakes_[0]->become_idle(); });
  EXPECT_EQ(answer_of(second)->http_status, 200);
}

TEST_F(SchedulerTest, ABrokenEnvironmentIsReportedAtStart) {
  make(2);
  fakes_[1]->idle_at_start = false;
  loop_->post([&] { fakes_[1]->die("no user namespaces here", /*permanent=*/true); });
  const Status status = start();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kEnvironment);
  EXPECT_EQ(status.error().message, "no user namespaces here");
}

TEST_F(SchedulerTest, GoesOnWithFewerSlotsUntilNoneIsLeft) {
  make(2);
  ASSERT_TRUE(start());
  EXPECT_EQ(scheduler_->capacity().slots, 2u);
  on_loop([&] { fakes_[0]->die("the disk is gone", /*permanent=*/true); });
  EXPECT_EQ(answer_of(submit())->http_status, 200);
  EXPECT_EQ(scheduler_->capacity().slots, 1u);
  on_loop([&] { fakes_[1]->die("this one too", /*permanent=*/true); });
  EXPECT_EQ(unable_.get_future().get().message, "this one too");
  EXPECT_EQ(scheduler_->capacity().slots, 0u);
}

TEST_F(SchedulerTest, AQuarantinedSlotIsShownAndTakesNothingUntilItIsBack) {
  make(2);
  fakes_[0]->play(Fault::kQuarantine);
  const Uuid first = submit();
  ASSERT_TRUE(start());
  answer_of(first);
  Scheduler::Capacity capacity;
  on_loop([&] { capacity = scheduler_->capacity(); });
  EXPECT_EQ(capacity.slots, 1u);
  ASSERT_EQ(capacity.quarantined.size(), 1u);
  EXPECT_EQ(capacity.quarantined[0].executor, "executor-0");
  EXPECT_EQ(capacity.quarantined[0].quarantine.reason, "processes could not be ended");
  EXPECT_EQ(answer_of(submit())->http_status, 200);
  EXPECT_EQ(fakes_[0]->assignments.size(), 1u);
  on_loop([&] { fakes_[0]->become_idle(); });
  on_loop([&] { capacity = scheduler_->capacity(); });
  EXPECT_EQ(capacity.slots, 2u);
  EXPECT_TRUE(capacity.quarantined.empty());
}

TEST_F(SchedulerTest, WithEverySlotQuarantinedRequestsWait) {
  make(1);
  fakes_[0]->play(Fault::kQuarantine);
  const Uuid first = submit();
  ASSERT_TRUE(start());
  answer_of(first);
  const Uuid second = submit();
  on_loop([&] { EXPECT_EQ(scheduler_->capacity().slots, 0u); });
  EXPECT_EQ(state_of(second), State::kQueued);
  on_loop([&] { fakes_[0]->become_idle(); });
  EXPECT_EQ(answer_of(second)->http_status, 200);
}

TEST_F(SchedulerTest, AnExecutorLostDuringAClaimHarmsNeitherThatRequestNorTheNext) {
  make(1);
  ASSERT_TRUE(start());
  // Whenever in the life of the claim the executor is lost and comes back: nothing is run twice or forgotten.
  for (int round = 0; round < 50; ++round) {
    loop_->post([&] { fakes_[0]->die("lost"); });
    const Uuid first = submit(0, 10);
    loop_->post([&] { fakes_[0]->die("lost again"); });
    const Uuid second = submit(0, 10);
    EXPECT_EQ(answer_of(first)->http_status, 200) << "round " << round;
    EXPECT_EQ(answer_of(second)->http_status, 200) << "round " << round;
  }
}

TEST_F(SchedulerTest, ARequestThatALostExecutorNeverHeardOfKeepsItsAttempt) {
  make(1);
  ASSERT_TRUE(start());
  on_loop([&] { fakes_[0]->recovers = false; });
  std::promise<void> begun, release;
  loop_->post([&] {
    fakes_[0]->die("lost");
    begun.set_value();
    release.get_future().wait();  // what the store says comes behind the loss
  });
  begun.get_future().wait();
  const Uuid id = submit();
  release.set_value();
  on_loop([&] { fakes_[0]->become_idle(); });
  EXPECT_EQ(answer_of(id)->http_status, 200);
  EXPECT_EQ(status_of(id).attempt, 1);
}

TEST_F(SchedulerTest, AShortageDoesNotOutliveTheSlotThatMetIt) {
  make(1);
  ASSERT_TRUE(start());
  on_loop([&] { fakes_[0]->recovers = false; });
  std::optional<store::ExecutorRef> taken;
  while (!taken) taken = flaky_->pool.load()->take(false);
  flaky_->pool.load()->assign(*taken, fail(ErrorKind::kBusy, "no descriptors are left"));
  on_loop([&] { fakes_[0]->die("lost"); });
  const int before = flaky_->idle_words();
  ASSERT_TRUE(flaky_->wait_for_idle_word(before, std::chrono::steady_clock::now() + kPatience))
      << "the store was not told to try again";
}

TEST_F(SchedulerTest, DrainingFinishesWhatRunsAndKeepsWhatIsQueued) {
  make(1);
  fakes_[0]->play(Fault::kHang);
  const Uuid running = submit();
  ASSERT_TRUE(start());
  for (bool runs = false; !runs;) on_loop([&] { runs = fakes_[0]->is_running(); });
  const Uuid queued = submit();
  std::promise<void> drained;
  on_loop([&] {
    scheduler_->drain(1h, [&] { drained.set_value(); });
    fakes_[0]->finish();
  });
  drained.get_future().get();
  EXPECT_EQ(state_of(running), State::kCompleted);
  EXPECT_EQ(state_of(queued), State::kQueued);
}

TEST_F(SchedulerTest, DrainingGivesUpWhatOutlastsTheGrace) {
  make(1);
  fakes_[0]->play(Fault::kHangIgnoringCancel);
  const Uuid once = submit(1, 1);
  ASSERT_TRUE(start());
  for (bool runs = false; !runs;) on_loop([&] { runs = fakes_[0]->is_running(); });
  std::promise<void> drained;
  on_loop([&] { scheduler_->drain(0ms, [&] { drained.set_value(); }); });
  drained.get_future().get();
  EXPECT_EQ(state_of(once), State::kInterrupted);
}

TEST_F(SchedulerTest, AnOutcomeThatCannotBeCommittedIsTriedAgainUntilItCan) {
  make(1);
  flaky_->failures = 2;
  const Uuid id = submit();
  ASSERT_TRUE(start());
  EXPECT_EQ(answer_of(id)->http_status, 200);
  EXPECT_EQ(state_of(id), State::kCompleted);
  EXPECT_EQ(status_of(id).attempt, 1);
}

TEST_F(SchedulerTest, DrainingDoesNotWaitForADiskThatStaysFull) {
  make(1);
  flaky_->failures = 1 << 30;
  const Uuid id = submit();
  ASSERT_TRUE(start());
  for (bool tried = false; !tried;) tried = flaky_->failures < (1 << 30);
  std::promise<void> drained;
  on_loop([&] { scheduler_->drain(1ms, [&] { drained.set_value(); }); });
  drained.get_future().get();
  EXPECT_FALSE(schema::is_terminal(state_of(id)));  // the next start recovers it
}

TEST_F(SchedulerTest, ManyRequestsOnManySlotsEachRunOnce) {
  make(4);
  ASSERT_TRUE(start());
  std::vector<Uuid> ids;
  for (int i = 0; i < 200; ++i) ids.push_back(submit());
  for (const Uuid& id : ids) EXPECT_EQ(answer_of(id)->http_status, 200);
  size_t runs = 0;
  on_loop([&] {
    for (const auto* fake : fakes_) runs += fake->assignments.size();
  });
  EXPECT_EQ(runs, ids.size());
}

// --- runs that are cancelled, and what is told of them ---

TEST_F(SchedulerTest, ACancellationEndsTheRunThatHasItsFence) {
  make(1);
  ASSERT_TRUE(start());
  const Uuid id = run_hanging();
  flaky_->pool.load()->cancel({id, 1});
  EXPECT_EQ(answer_of(id)->http_status, 409);
  EXPECT_EQ(state_of(id), State::kCancelled);
  EXPECT_EQ(cancels_of(0), std::vector{id});
  EXPECT_EQ(events_of(id), (std::vector<std::string>{"admitted", "queued", "assigned", "running", "finished"}));
  EXPECT_EQ(answer_of(submit())->http_status, 200) << "the slot goes on";
}

TEST_F(SchedulerTest, ACancellationRightBehindItsClaimFindsTheRun) {
  make(1);
  flaky_->cancels_at_once = true;
  for (int i = 0; i < 20; ++i) fakes_[0]->play(Fault::kHang);
  ASSERT_TRUE(start());
  for (int i = 0; i < 20; ++i) EXPECT_EQ(answer_of(submit())->http_status, 409);
}

TEST_F(SchedulerTest, ACancellationThatComesTooLateChangesNothing) {
  make(1);
  ASSERT_TRUE(start());
  const Uuid id = run_hanging(Fault::kOutcomeAfterCancel);
  flaky_->pool.load()->cancel({id, 1});
  EXPECT_EQ(answer_of(id)->http_status, 200);
  flaky_->pool.load()->cancel({id, 1});
  EXPECT_EQ(answer_of(submit())->http_status, 200);
  EXPECT_EQ(cancels_of(0), std::vector{id}) << "that run is over";
}

TEST_F(SchedulerTest, ACancellationOfAnotherAttemptIsIgnored) {
  make(1);
  fakes_[0]->play(Fault::kDieWhileRunning);
  const Uuid id = submit(0, 2);
  ASSERT_TRUE(start());
  on_loop([&] { fakes_[0]->play(Fault::kHang); });
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (bool runs_again = false; !runs_again;) {
    on_loop([&] { runs_again = fakes_[0]->assignments.size() == 2 && fakes_[0]->is_running(); });
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
  flaky_->pool.load()->cancel({id, 1});
  flaky_->pool.load()->cancel({Uuid::random(), 2});
  EXPECT_TRUE(cancels_of(0).empty());
  flaky_->pool.load()->cancel({id, 2});
  EXPECT_EQ(answer_of(id)->http_status, 409);
}

TEST_F(SchedulerTest, ACancellationOfWhatWasLostIsIgnored) {
  make(1);
  ASSERT_TRUE(start());
  const Uuid id = run_hanging();
  on_loop([&] {
    fakes_[0]->recovers = false;
    fakes_[0]->die("lost");
  });
  EXPECT_EQ(answer_of(id)->http_status, 500);
  flaky_->pool.load()->cancel({id, 1});
  EXPECT_TRUE(cancels_of(0).empty());
  EXPECT_EQ(state_of(id), State::kInterrupted);
}

TEST_F(SchedulerTest, TheStoreIsShownWhatARunPrintsUntilItEnds) {
  make(1);
  ASSERT_TRUE(start());
  const Uuid id = run_hanging();
  const auto memory = std::make_shared<const UniqueFd>(::memfd_create("test", MFD_CLOEXEC));
  on_loop([&] { fakes_[0]->show_output(executor::OutputStream::kStderr, memory); });
  on_loop([&] {
    ASSERT_EQ(flaky_->output_notes.size(), 1u);
    EXPECT_EQ(flaky_->output_notes[0].fence, (store::Fence{id, 1}));
    EXPECT_EQ(flaky_->output_notes[0].stream, store::OutputStream::kStderr);
    EXPECT_EQ(flaky_->output_notes[0].memory, memory);
    fakes_[0]->finish();
    fakes_[0]->show_output(executor::OutputStream::kStdout, memory);
  });
  answer_of(id);
  on_loop([&] { EXPECT_EQ(flaky_->output_notes.size(), 1u); });
}

// --- leases ---

/// Two slots of one GPU, each with a program that hangs, on a loop whose clock the test moves. The first has a lease.
class SchedulerWithGpu : public SchedulerTest {
 protected:
  static constexpr uint64_t kHeld = 7, kAsked = 3, kContext = 4;

  void SetUp() override {
    SchedulerTest::SetUp();
    loop_ = std::move(*EventLoop::create(clock_));
    SchedulerConfig config;
    config.devices = {0};
    config.clearance = &clearance_;
    make(2, std::move(config));
    for (auto* fake : fakes_) fake->play(Fault::kHang);
    ASSERT_TRUE(start());
    submit();
    submit();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (bool are_running = false; !are_running;) {
      on_loop([&] { are_running = fakes_[0]->is_running() && fakes_[1]->is_running(); });
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    }
    on_loop([&] {
      fakes_[0]->ask_lease({.id = kHeld, .devices = {0}});
      fakes_[1]->ask_lease({.id = kAsked, .devices = {0}});
      fakes_[1]->ask_lease({.id = kContext, .purpose = executor::LeasePurpose::kContext, .devices = {0}});
    });
    on_loop([&] { ASSERT_EQ(fakes_[0]->grants.size(), 1u); });
  }
  /// The first one's lease ends, and something of it stays.
  void quarantine() {
    on_loop([&] { fakes_[0]->end_lease(kHeld, /*processes_ended=*/true); });
    on_loop([&] { clearance_.asked.at(0).handlers.stuck("process 77 stays"); });
    on_loop([] {});
  }
  void pass(std::chrono::seconds time) {
    on_loop([&] { clock_.advance(time); });
    on_loop([] {});
  }

  FakeClock clock_;
  FakeClearance clearance_;
};

TEST_F(SchedulerWithGpu, TheStoreIsToldOnceWhichGpusARunHas) {
  constexpr uint64_t kAgain = 8;
  on_loop([&] {
    fakes_[0]->end_lease(kHeld);
    fakes_[0]->ask_lease({.id = kAgain, .devices = {0}});
    fakes_[1]->end_lease(kAsked);
    fakes_[1]->end_lease(kContext);
  });
  on_loop([] {});
  on_loop([&] {
    ASSERT_EQ(fakes_[0]->grants.size(), 2u);
    ASSERT_EQ(flaky_->gpu_notes.size(), 2u) << "one for each request";
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(flaky_->gpu_notes[i].first, (store::Fence{fakes_[i]->assignments[0].request_id, 1}));
      EXPECT_EQ(flaky_->gpu_notes[i].second, std::vector<int>{0});
    }
    for (auto* fake : fakes_) fake->finish();
  });
}

TEST_F(SchedulerWithGpu, AProgramIsDeniedAGpuThatStaysQuarantinedAndItsContextIsNot) {
  quarantine();
  pass(limits::kQuarantineGrace - 1s);
  on_loop([&] { EXPECT_TRUE(fakes_[1]->denials.empty()); });
  pass(1s);
  on_loop([&] {
    ASSERT_EQ(fakes_[1]->denials.size(), 1u);
    EXPECT_EQ(fakes_[1]->denials[0].first, kAsked);
    EXPECT_THAT(fakes_[1]->denials[0].second, testing::HasSubstr("process 77 stays"));
    fakes_[1]->end_lease(kAsked, /*processes_ended=*/true);
    clearance_.asked[0].handlers.cleared();
  });
  on_loop([] {});
  on_loop([&] {
    ASSERT_EQ(fakes_[1]->grants.size(), 1u);
    EXPECT_EQ(fakes_[1]->grants[0].first, kContext);
    EXPECT_EQ(clearance_.asked.size(), 1u) << "what was denied had no GPU";
    fakes_[1]->end_lease(kContext);
    for (auto* fake : fakes_) fake->finish();
  });
}

TEST_F(SchedulerWithGpu, AnExecutorThatDiesWhileItWaitsIsDeniedNothing) {
  quarantine();
  on_loop([&] { fakes_[1]->die("lost"); });
  on_loop([] {});
  pass(limits::kQuarantineGrace);
  on_loop([&] { EXPECT_TRUE(fakes_[1]->denials.empty()); });
  on_loop([&] { clearance_.asked[0].handlers.cleared(); });
  on_loop([] {});
  on_loop([&] {
    EXPECT_TRUE(fakes_[1]->grants.empty());
    EXPECT_EQ(scheduler_->devices()[0].table.use, LeaseTable::DeviceUse::kFree);
    fakes_[0]->finish();
  });
}

TEST_F(SchedulerWithGpu, AnExecutorThatDiesOnceItIsDeniedEndsNothingTwice) {
  quarantine();
  pass(limits::kQuarantineGrace);
  on_loop([&] { ASSERT_EQ(fakes_[1]->denials.size(), 1u); });
  on_loop([&] { fakes_[1]->die("lost"); });
  on_loop([] {});
  on_loop([&] { clearance_.asked[0].handlers.cleared(); });
  on_loop([] {});
  on_loop([&] {
    EXPECT_TRUE(fakes_[1]->grants.empty());
    EXPECT_EQ(fakes_[1]->denials.size(), 1u);
    EXPECT_EQ(clearance_.asked.size(), 1u);
    EXPECT_EQ(scheduler_->devices()[0].table.use, LeaseTable::DeviceUse::kFree);
    fakes_[0]->finish();
  });
}

}  // namespace
}  // namespace kcoral::scheduler
