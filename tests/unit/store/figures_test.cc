// What the store counts of what happens to requests.
#include <numeric>

#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;
using testing::ElementsAre;
using testing::FieldsAre;
using namespace std::chrono_literals;

class FiguresTest : public StoreFixture {
 protected:
  Figures figures() const { return store_->figures(); }
  uint64_t ended(State state) const { return figures().ended[static_cast<size_t>(state)]; }
  static uint64_t count(const HistogramView& view) {
    return std::accumulate(view.counts.begin(), view.counts.end(), uint64_t{0});
  }
  static Completion ran_for(std::chrono::milliseconds time) {
    Completion made = completion(answer("{}"));
    made.times.elapsed_ms = to_ms(time);
    return made;
  }
};

TEST_F(FiguresTest, CountsARequestFromItsAdmissionToItsEnd) {
  Submission polled = submission();
  polled.synchronous = false;
  polled.client = "poller";
  admitted(std::move(polled));
  clock_.advance(2s);
  ASSERT_TRUE(finish(claim()->fence, ran_for(3000ms)));
  const Figures seen = figures();
  EXPECT_EQ(seen.admitted_polled, 1u);
  EXPECT_EQ(seen.admitted_synchronous, 0u);
  EXPECT_EQ(ended(State::kCompleted), 1u);
  EXPECT_THAT(seen.clients.busiest, ElementsAre(FieldsAre("poller", 1)));
  EXPECT_EQ(seen.queued.sum_seconds, 2);
  EXPECT_EQ(seen.ran.sum_seconds, 3);
  EXPECT_GE(count(seen.committed), 2u);
  EXPECT_GE(seen.operations_committed, count(seen.committed));
  EXPECT_GT(seen.answer_bytes, 0u);
}

TEST_F(FiguresTest, WhatIsAttachedToOrRefusedIsNotAdmitted) {
  config_.queued_requests_max = 2;
  config_.queued_requests_of_client_max = 1;
  reopen();
  const Submission sent = submission();
  admitted(sent);
  EXPECT_TRUE(admit(sent));
  EXPECT_FALSE(admit(submission()));
  Submission other = submission();
  other.client = "other";
  admitted(other);
  Submission third = submission();
  third.client = "third";
  EXPECT_FALSE(admit(third));
  EXPECT_EQ(figures().admitted_synchronous, 2u);
  EXPECT_EQ(figures().refused_client_limit, 1u);
  EXPECT_EQ(figures().refused_queue_full, 1u);
}

TEST_F(FiguresTest, TheQueuesAgeIsThatOfItsOldestWhateverTheWallClockDoes) {
  EXPECT_EQ(figures().oldest_queued_age, std::nullopt);
  const Uuid first = admitted(submission());
  clock_.advance(10s);
  admitted(submission());
  clock_.step_wall(-1h);
  clock_.advance(1s);
  EXPECT_EQ(figures().oldest_queued_age, 11s);
  ASSERT_TRUE(cancel(first));
  EXPECT_EQ(figures().oldest_queued_age, 1s);
}

TEST_F(FiguresTest, TheQueuesAgeSurvivesARestart) {
  admitted(submission());
  clock_.advance(90s);
  reopen();
  EXPECT_EQ(figures().oldest_queued_age, 90s);
}

TEST_F(FiguresTest, CountsEveryWayToEndAndToBeginAgain) {
  Submission lost = submission();
  lost.max_attempts = 2;
  lost.client = "unlucky";
  admitted(std::move(lost));
  ASSERT_TRUE(abandon(claim()->fence, "its executor died"));
  EXPECT_EQ(figures().requeued_lost, 1u);
  const Fence second = claim()->fence;
  store_->give_back(second, "its executor was lost before it was told");
  const Fence third = claim()->fence;
  EXPECT_EQ(figures().requeued_unstarted, 1u);
  ASSERT_TRUE(abandon(third, "its executor died"));
  EXPECT_EQ(ended(State::kInterrupted), 1u);

  const Uuid cancelled = admitted(submission());
  ASSERT_TRUE(cancel(cancelled));
  EXPECT_EQ(ended(State::kCancelled), 1u);
  EXPECT_THAT(figures().clients.busiest, ElementsAre(FieldsAre("tester", 1), FieldsAre("unlucky", 1)));
  EXPECT_EQ(count(figures().queued), 3u) << "each assignment";
  EXPECT_EQ(count(figures().ran), 0u) << "nobody knows how long";
}

TEST_F(FiguresTest, CountsWhatTheBlobCacheSpares) {
  const StagedBlob blob = staged("hello");
  admitted(submission_with({blob}));
  ASSERT_TRUE(finish(claim()->fence, ran_for(1ms)));
  EXPECT_EQ(figures().blobs_received, 1u);
  EXPECT_EQ(figures().blob_bytes_received, 5u);
  EXPECT_EQ(figures().blob_cache_bytes, 5u);
  EXPECT_EQ(figures().blob_cache_hits, 1u);

  Submission missing = submission();
  missing.program.blobs = {Sha256::of("nowhere"), blob.sha256};
  EXPECT_EQ(admit(missing)->kind, Admission::Kind::kCacheMiss);
  EXPECT_EQ(figures().blobs_missing, 1u);

  reopen();
  Submission again = submission();
  again.program.blobs = {blob.sha256};
  admitted(std::move(again));
  claim();
  EXPECT_EQ(figures().blob_cache_misses, 1u) << "nothing is hot after a restart";
}

TEST_F(FiguresTest, CountsWhatIsPruned) {
  config_.retention = {24h, 1};
  reopen();
  admitted(submission());
  ASSERT_TRUE(finish(claim()->fence, ran_for(1ms)));
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(figures().answers_pruned, 1u);
  EXPECT_EQ(figures().answer_bytes, 0u);
  clock_.advance(25h);
  reopen();  // by then every audit is copied
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(figures().requests_forgotten, 1u);
}

}  // namespace
}  // namespace kcoral::store
