// The wall clock jumps, as NTP, an operator or a suspended machine makes it: nothing but the stamps of what happens
// afterwards may follow it.
#include <algorithm>

#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using namespace std::chrono_literals;
using schema::State;

constexpr auto kDay = 24h;

class ClockStepTest : public StoreFixture {
 protected:
  Uuid submitted_by(const std::string& client) {
    Submission made = submission();
    made.client = client;
    made.max_attempts = 2;
    return admitted(std::move(made));
  }
  std::string client_of(const Uuid& id) { return status(id)->client; }
  Completion ran(double elapsed_ms) {
    Completion made = completion(answer("{}"));
    made.times.elapsed_ms = elapsed_ms;
    return made;
  }
  Uuid ended() {
    const Uuid id = admitted(submission());
    EXPECT_TRUE(finish(claim()->fence, completion(answer("{}"))));
    return id;
  }
};

TEST_F(ClockStepTest, WaitsInTheQueueAreAsLongAsTheyWere) {
  for (const auto step : {kDay, -kDay}) {
    admitted(submission());
    clock_.step_wall(step);
    clock_.advance(2s);
    EXPECT_EQ(claim()->queued, 2s);
  }
}

TEST_F(ClockStepTest, AWaitAfterALostRunBeginsWithItsLoss) {
  submitted_by("a");
  const Fence fence = claim()->fence;
  clock_.step_wall(kDay);
  clock_.advance(5s);
  ASSERT_TRUE(abandon(fence, "lost"));
  clock_.step_wall(-kDay);
  clock_.advance(2s);
  EXPECT_EQ(claim()->queued, 2s);
}

TEST_F(ClockStepTest, TheTimesOfARequestNeverRunBackwards) {
  const Uuid id = admitted(submission());
  clock_.step_wall(-kDay);
  const Fence fence = claim()->fence;
  clock_.step_wall(-kDay);
  ASSERT_TRUE(finish(fence, completion(answer("{}"))));
  const RequestStatus found = status(id).value();
  EXPECT_LE(found.submitted_at, *found.started_at);
  EXPECT_LE(*found.started_at, *found.finished_at);
  expect_sound_audit(audit(id));
}

/// And not for the day by which the clock was put forth.
TEST_F(ClockStepTest, ALostRunIsChargedForWhatItTook) {
  for (int i = 0; i < 10; ++i) {
    for (const char* client : {"a", "b"}) submitted_by(client);
  }
  const Fence lost = claim()->fence;
  clock_.step_wall(kDay);
  clock_.advance(10ms);
  ASSERT_TRUE(abandon(lost, "lost"));
  const std::string loser = client_of(lost.request_id);
  int of_loser = 0;
  for (int i = 0; i < 10; ++i) {
    const Fence fence = claim()->fence;
    if (client_of(fence.request_id) == loser) ++of_loser;
    ASSERT_TRUE(finish(fence, ran(10)));
  }
  EXPECT_GE(of_loser, 4) << "it has a half of the time";
}

/// Their stamps are older than those of all that came while the clock was ahead.
TEST_F(ClockStepTest, AnswersAfterAStepBackAreNotTheFirstToGo) {
  const std::string content(limits::kMiB, 'a');
  config_.retention.artifact_bytes_max = 3 * limits::kMiB + limits::kMiB / 2;
  reopen();
  const auto answered = [&] {
    clock_.advance(1s);
    const Uuid id = admitted(submission());
    EXPECT_TRUE(finish(claim()->fence, completion(answer("{}", {content}))));
    return id;
  };
  clock_.step_wall(kDay);
  const Uuid first = answered();
  const Uuid second = answered();
  clock_.step_wall(-kDay);
  std::vector<Uuid> later;
  for (int i = 0; i < 3; ++i) later.push_back(answered());
  ASSERT_TRUE(store_->prune());
  for (const Uuid& id : {first, second}) EXPECT_EQ(watch(id).error().kind, ErrorKind::kGone);
  for (const Uuid& id : later) EXPECT_TRUE(watch(id));
}

TEST_F(ClockStepTest, AStepForthForgetsNothing) {
  config_.retention.history = 30 * kDay;
  reopen();
  const Uuid id = ended();
  reopen();  // by then every audit is copied
  clock_.step_wall(40 * kDay);
  ASSERT_TRUE(store_->prune());
  clock_.advance(2 * kDay);
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(state_of(id), State::kCompleted);
  clock_.step_wall(-40 * kDay);
  clock_.advance(27 * kDay);
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(state_of(id), State::kCompleted) << "it is 29 days old";
  clock_.advance(2 * kDay);
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(status(id).error().kind, ErrorKind::kNotFound);
}

TEST_F(ClockStepTest, AClockThatStaysAheadIsBelievedInTheEnd) {
  config_.retention.history = 30 * kDay;
  reopen();
  const Uuid id = ended();
  reopen();
  clock_.step_wall(40 * kDay);
  for (int day = 0; day < 16; ++day) {
    EXPECT_EQ(state_of(id), State::kCompleted);
    clock_.advance(kDay);
    ASSERT_TRUE(store_->prune());
  }
  EXPECT_EQ(status(id).error().kind, ErrorKind::kNotFound);
}

}  // namespace
}  // namespace kcoral::store
