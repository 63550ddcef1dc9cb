// Many threads at once. Run under ThreadSanitizer too.
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "base/mutex.h"
#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

class RaceTest : public StoreFixture {};

TEST_F(RaceTest, AWatchThatMeetsTheEndFiresExactlyOnce) {
  constexpr int kRounds = 100;
  constexpr int kWatchers = 3;
  for (int round = 0; round < kRounds; ++round) {
    const Uuid id = admitted(submission());
    const Fence fence = claim()->fence;
    std::atomic<int> fired{0};
    std::vector<Slot<Result<Store::AnswerPtr>>> slots(kWatchers);
    std::vector<std::thread> threads;
    for (auto& slot : slots) {
      threads.emplace_back([&] {
        store_->watch(id, [&fired, set = slot.setter()](Result<Store::AnswerPtr> read) {
          ++fired;
          set(std::move(read));  // a second time would throw
        });
      });
    }
    ASSERT_TRUE(finish(fence, completion(answer(fmt::format(R"({{"round":{}}})", round)))));
    for (std::thread& thread : threads) thread.join();
    for (auto& slot : slots) EXPECT_EQ(slot.get().value()->document, fmt::format(R"({{"round":{}}})", round));
    EXPECT_EQ(fired, kWatchers);
  }
}

TEST_F(RaceTest, AfterUnwatchTheCallbackIsOver) {
  for (int round = 0; round < 100; ++round) {
    const Uuid id = admitted(submission());
    const Fence fence = claim()->fence;
    // What the callback uses dies right after unwatch, as a connection does: ThreadSanitizer sees a callback that is
    // late.
    auto used = std::make_unique<int>(0);
    const auto watched = store_->watch(id, [raw = used.get()](const Result<Store::AnswerPtr>&) { ++*raw; });
    Slot<Status> finished;
    store_->finish(fence, completion(answer("{}")), finished.setter());
    if (round % 2 == 0) std::this_thread::yield();
    store_->unwatch(watched);
    EXPECT_LE(*used, 1);
    used.reset();
    ASSERT_TRUE(finished.get());
  }
}

TEST_F(RaceTest, OnlyOneOfManyEndsCounts) {
  for (int round = 0; round < 20; ++round) {
    Submission sent = submission();
    sent.max_attempts = 2;
    const Uuid id = admitted(std::move(sent));
    const Fence fence = claim()->fence;
    Slot<Result<Store::AnswerPtr>> watched;
    store_->watch(id, watched.setter());
    std::vector<Slot<Status>> slots(6);
    for (size_t i = 0; i < slots.size(); ++i) {
      store_->finish(fence, completion(answer(fmt::format(R"({{"i":{}}})", i), {std::string(1000 * i, 'p')})),
                     slots[i].setter());
    }
    int succeeded = 0;
    std::string document;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].get()) {
        ++succeeded;
        document = fmt::format(R"({{"i":{}}})", i);
      }
    }
    EXPECT_EQ(succeeded, 1);
    EXPECT_EQ(watched.get().value()->document, document);
    EXPECT_EQ(watch(id).value()->document, document);
  }
  EXPECT_TRUE(raw_content().nameless().empty());
}

/// Submitters, executors and people who look, all at once.
class Crowd {
 public:
  Crowd(Store& store, int submitters, int requests_each)
      : store_(store), submitters_(submitters), requests_each_(requests_each) {}

  void run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < submitters_; ++i) threads.emplace_back([this, i] { submit(i); });
    for (int i = 0; i < 3; ++i) threads.emplace_back([this, i] { execute(i); });
    threads.emplace_back([this] { look(); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<Uuid> ids() {
    const MutexLock lock(mutex_);
    return ids_;
  }

 private:
  void submit(int submitter) {
    for (int i = 0; i < requests_each_; ++i) {
      std::vector<StagedBlob> blobs;
      if (i % 3 == 0) blobs = {staged(fmt::format("shared {}", i)), staged(fmt::format("own {} {}", submitter, i))};
      Submission sent = submission_with(blobs);
      sent.max_attempts = 2;
      const Uuid id = sent.request_id;
      Slot<Result<Admission>> admission;
      store_.admit(std::move(sent), admission.setter());
      ASSERT_EQ(admission.get().value().kind, Admission::Kind::kAdmitted);
      {
        const MutexLock lock(mutex_);
        ids_.push_back(id);
      }
      Slot<Result<Store::AnswerPtr>> ended;
      store_.watch(id, ended.setter());
      ASSERT_EQ(ended.get().value()->document, fmt::format(R"({{"id":"{}"}})", id.str()));
      ++ended_;
    }
  }

  bool all_ended() const { return ended_ == submitters_ * requests_each_; }

  void execute(int executor) {
    for (int turn = 0; !all_ended(); ++turn) {
      const auto claimed = pool_.claim(store_, {fmt::format("executor-{}", executor), executor}).value();
      if (!claimed) {
        std::this_thread::yield();
        continue;
      }
      const Fence fence = claimed->fence;
      {
        const MutexLock lock(mutex_);
        ASSERT_TRUE(started_.insert(fence).second) << "an attempt is started once";
      }
      store_.mark_running(fence, 1000 + turn);
      const WallTime now = Clock::system().wall_now();
      store_.append_audit(fence,
                          {{now, R"("event":"instruction_started")"}, {now, R"("event":"instruction_finished")"}});
      Slot<Status> done;
      if (turn % 7 == 0 && fence.attempt == 1) {
        store_.abandon(fence, "executor died", done.setter());
      } else {
        store_.finish(fence, completion(answer(fmt::format(R"({{"id":"{}"}})", fence.request_id.str()), {"part"})),
                      done.setter());
      }
      ASSERT_TRUE(done.get());
      store_.append_audit(fence, {{now, R"("event":"process_exited","code":0)"}});
    }
  }

  void look() {
    std::mt19937 random(1);
    while (!all_ended()) {
      std::optional<Uuid> id;
      {
        const MutexLock lock(mutex_);
        if (!ids_.empty()) id = ids_[random() % ids_.size()];
      }
      if (id) {
        expect_sound_audit(audit_in(store_, *id).value());
        ASSERT_TRUE(status_in(store_, *id));
      }
      (void)store_.counts();
    }
  }

  TestPool pool_;
  Store& store_;
  const int submitters_;
  const int requests_each_;
  std::atomic<int> ended_{0};
  Mutex mutex_;
  std::vector<Uuid> ids_ KCORAL_GUARDED_BY(mutex_);
  std::set<Fence> started_ KCORAL_GUARDED_BY(mutex_);
};

TEST_F(RaceTest, ACrowdOfSubmittersAndExecutors) {
  Crowd crowd(*store_, 6, 30);
  crowd.run();
  EXPECT_EQ(store_->counts().queued, 0u);
  EXPECT_EQ(store_->counts().in_progress, 0u);
  reopen();
  for (const Uuid& id : crowd.ids()) {
    EXPECT_EQ(state_of(id), schema::State::kCompleted);
    const auto records = audit(id);
    expect_sound_audit(records);
    const auto events = events_of(records);
    EXPECT_EQ(std::count(events.begin(), events.end(), "finished"), 1);
    const int attempts = status(id)->attempt;
    EXPECT_EQ(std::count(events.begin(), events.end(), "assigned"), attempts);
    EXPECT_EQ(std::count(events.begin(), events.end(), "requeued"), attempts - 1);
  }
}

}  // namespace
}  // namespace kcoral::store
