// Cancellation: what is queued never runs, what runs is ended, and the wish survives whatever happens in between.
#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CancelTest : public StoreFixture {
 protected:
  Completion cancelled_by_executor(const Uuid& id) {
    return completion_with_error(id, State::kCancelled, {ErrorKind::kCancelled, "cancelled in instruction 3"},
                                 "cancelled in instruction 3");
  }
};

TEST_F(CancelTest, AQueuedRequestEndsAtOnceAndNeverRuns) {
  const Uuid id = admitted(submission());
  Slot<Result<Store::AnswerPtr>> watched;
  store_->watch(id, watched.setter());
  clock_.advance(std::chrono::milliseconds(250));
  EXPECT_EQ(cancel(id).value(), State::kCancelled);
  EXPECT_EQ(watched.get().value()->http_status, 409);
  EXPECT_EQ(state_of(id), State::kCancelled);
  EXPECT_EQ(status(id)->error_kind, "cancelled");
  EXPECT_DOUBLE_EQ(status(id)->times->queue_ms, 250);
  EXPECT_FALSE(claim());
  EXPECT_EQ(store_->counts().queued, 0u);
  EXPECT_THAT(pool_.cancelled(), IsEmpty());
  EXPECT_THAT(events_of(audit(id)), ElementsAre("admitted", "queued", "cancel_requested", "finished"));
}

TEST_F(CancelTest, ARunIsEndedByItsExecutorAndItsOutcomeSaysSo) {
  const Uuid id = admitted(submission());
  const Fence fence = claim()->fence;
  EXPECT_EQ(cancel(id).value(), State::kAssigned);
  EXPECT_THAT(pool_.cancelled(), ElementsAre(fence));
  EXPECT_TRUE(status(id)->cancel_requested);
  ASSERT_TRUE(finish(fence, cancelled_by_executor(id)));
  EXPECT_EQ(state_of(id), State::kCancelled);
  EXPECT_EQ(store_->counts().in_progress, 0u);
}

TEST_F(CancelTest, WhatTheRunSaidBeforeItWasCancelledStandsBeforeTheWish) {
  const Uuid id = admitted(submission());
  const Fence fence = claim()->fence;
  store_->mark_running(fence, 4711);
  EXPECT_EQ(cancel(id).value(), State::kRunning);
  EXPECT_THAT(events_of(audit(id)), ElementsAre("admitted", "queued", "assigned", "running", "cancel_requested"));
}

TEST_F(CancelTest, CancellingAgainChangesNothing) {
  const Uuid queued = admitted(submission());
  EXPECT_EQ(cancel(queued).value(), State::kCancelled);
  EXPECT_EQ(cancel(queued).value(), State::kCancelled);
  EXPECT_THAT(events_of(audit(queued)), ElementsAre("admitted", "queued", "cancel_requested", "finished"));
  const Uuid running = admitted(submission());
  const Fence fence = claim()->fence;
  EXPECT_EQ(cancel(running).value(), State::kAssigned);
  EXPECT_EQ(cancel(running).value(), State::kAssigned);
  EXPECT_THAT(events_of(audit(running)), ElementsAre("admitted", "queued", "assigned", "cancel_requested"));
  EXPECT_THAT(pool_.cancelled(), ElementsAre(fence, fence)) << "the executor may have missed the first";
}

TEST_F(CancelTest, WhatHasEndedIsAConflictAndWhatNobodyKnowsIsNotFound) {
  const Uuid id = admitted(submission());
  ASSERT_TRUE(finish(claim()->fence, completion(answer("{}"))));
  const auto refused = cancel(id);
  EXPECT_EQ(refused.error().kind, ErrorKind::kConflict);
  EXPECT_THAT(refused.error().message, HasSubstr("completed"));
  EXPECT_EQ(cancel(Uuid::random()).error().kind, ErrorKind::kNotFound);
}

TEST_F(CancelTest, AnOutcomeThatCameFirstStands) {
  const Uuid id = admitted(submission());
  const Fence fence = claim()->fence;
  ASSERT_TRUE(cancel(id));
  ASSERT_TRUE(finish(fence, completion(answer(R"({"done":true})"))));
  EXPECT_EQ(state_of(id), State::kCompleted);
}

TEST_F(CancelTest, ALostRunThatWasCancelledIsNotStartedAgain) {
  Submission sent = submission();
  sent.max_attempts = 3;
  const Uuid id = admitted(std::move(sent));
  const Fence fence = claim()->fence;
  ASSERT_TRUE(cancel(id));
  ASSERT_TRUE(abandon(fence, "executor 1 was killed"));
  EXPECT_EQ(state_of(id), State::kCancelled);
  EXPECT_FALSE(claim());
  EXPECT_EQ(store_->counts().queued, 0u);
  EXPECT_EQ(store_->counts().in_progress, 0u);
  EXPECT_THAT(watch(id).value()->document, HasSubstr("executor 1 was killed"));
}

TEST_F(CancelTest, ARunThatWasGivenBackAfterItWasCancelledIsNotQueuedAgain) {
  const Uuid id = admitted(submission());
  const Fence fence = claim()->fence;
  ASSERT_TRUE(cancel(id));
  Slot<Result<Store::AnswerPtr>> watched;
  store_->watch(id, watched.setter());
  store_->give_back(fence, "its executor was lost before it heard of it");
  EXPECT_EQ(watched.get().value()->http_status, 409);
  EXPECT_EQ(state_of(id), State::kCancelled);
  EXPECT_EQ(store_->counts().queued, 0u);
  EXPECT_EQ(store_->counts().in_progress, 0u);
}

TEST_F(CancelTest, TheWishSurvivesARestart) {
  Submission sent = submission();
  sent.max_attempts = 3;
  const Uuid running = admitted(std::move(sent));
  ASSERT_TRUE(claim());
  ASSERT_TRUE(cancel(running));
  const Uuid queued = admitted(submission());
  ASSERT_TRUE(cancel(queued));
  reopen();
  EXPECT_EQ(state_of(running), State::kCancelled);
  EXPECT_EQ(state_of(queued), State::kCancelled);
  expect_sound_audit(audit(running));
}

TEST_F(CancelTest, WhatNobodyWaitsForEndsUnlessItIsPolled) {
  Submission sent = submission();
  const Uuid waited_for = admitted(sent);
  EXPECT_EQ(cancel(waited_for, CancelBy::kNobody).value(), State::kCancelled);
  EXPECT_THAT(audit(waited_for).at(2), HasSubstr("nobody waits"));

  Submission polled = submission();
  polled.synchronous = false;
  const Uuid id = admitted(polled);
  EXPECT_EQ(cancel(id, CancelBy::kNobody).value(), State::kQueued);
  EXPECT_EQ(state_of(id), State::kQueued);
}

TEST_F(CancelTest, WhatIsAttachedToForPollingNeitherEndsUnwatchedNorExpires) {
  Submission sent = submission();
  const Uuid id = admitted(sent);
  sent.synchronous = false;
  EXPECT_EQ(admit(sent)->kind, Admission::Kind::kAttached);
  EXPECT_EQ(cancel(id, CancelBy::kNobody).value(), State::kQueued);
  store_->reject_if_queued(id, answer("{}"), "the wait for a worker passed its limit");
  // Comes after, on the same thread.
  EXPECT_EQ(cancel(id, CancelBy::kNobody).value(), State::kQueued);
  // Somebody who waits for it does not make it synchronous again.
  sent.synchronous = true;
  EXPECT_EQ(admit(sent)->kind, Admission::Kind::kAttached);
  EXPECT_EQ(cancel(id, CancelBy::kNobody).value(), State::kQueued);
}

TEST_F(CancelTest, TheEndIsToldWithoutTheAnswer) {
  const Uuid id = admitted(submission());
  Slot<Status> before;
  store_->watch_end(id, before.setter());
  ASSERT_TRUE(finish(claim()->fence, completion(answer("{}"))));
  EXPECT_TRUE(before.get());
  Slot<Status> after;
  store_->watch_end(id, after.setter());
  EXPECT_TRUE(after.get());
  Slot<Status> unknown;
  store_->watch_end(Uuid::random(), unknown.setter());
  EXPECT_EQ(unknown.get().error().kind, ErrorKind::kNotFound);
}

TEST_F(CancelTest, AFullQueueTakesNoMore) {
  config_.queued_requests_max = 3;
  config_.queued_requests_of_client_max = 2;
  reopen();
  Submission sent = submission();
  const Uuid first = admitted(sent);
  const Uuid second = admitted(submission());
  EXPECT_EQ(admit(submission()).error().kind, ErrorKind::kRateLimited);
  EXPECT_EQ(admit(sent)->kind, Admission::Kind::kAttached) << "an id that is known needs no room";
  Submission other = submission();
  other.client = "other";
  admitted(other);
  Submission third = submission();
  third.client = "third";
  EXPECT_EQ(admit(third).error().kind, ErrorKind::kBusy);
  EXPECT_EQ(status(third.request_id).error().kind, ErrorKind::kNotFound) << "it consumed nothing";
  ASSERT_TRUE(cancel(first));
  EXPECT_EQ(admit(third)->kind, Admission::Kind::kAdmitted);
  ASSERT_TRUE(cancel(second));
}

}  // namespace
}  // namespace kcoral::store
