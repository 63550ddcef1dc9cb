// What has ended is kept as long, and takes as much room, as the operator wants.
#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;
using testing::IsEmpty;
using namespace std::chrono_literals;

class RetentionTest : public StoreFixture {
 protected:
  void bound(std::optional<std::chrono::hours> history, std::optional<uint64_t> artifact_bytes_max) {
    config_.retention = {history, artifact_bytes_max};
    reopen();
  }
  Uuid ended(size_t part_bytes, std::map<std::string, std::string> labels = {}) {
    clock_.advance(1s);
    Submission sent = submission();
    sent.program.options.labels = std::move(labels);
    const Uuid id = admitted(std::move(sent));
    EXPECT_TRUE(finish(claim()->fence, completion(answer("{}", {std::string(part_bytes, 'a')}))));
    return id;
  }
  ErrorKind answer_error(const Uuid& id) {
    const auto read = watch(id);
    return read ? ErrorKind::kEngine : read.error().kind;
  }
};

TEST_F(RetentionTest, TheOldestAnswersGoBeyondTheCapacityAndTheirRowsStay) {
  bound(std::nullopt, 5 * limits::kMiB);
  std::vector<Uuid> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(ended(i % 2 == 0 ? limits::kMiB : 8 * limits::kKiB));
  const Uuid large = ended(4 * limits::kMiB);
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(answer_error(ids[0]), ErrorKind::kGone);
  EXPECT_EQ(output(ids[0]).error().kind, ErrorKind::kGone);
  EXPECT_EQ(answer_error(ids[1]), ErrorKind::kGone) << "small ones in their turn";
  EXPECT_EQ(state_of(ids[0]), State::kCompleted);
  EXPECT_FALSE(audit(ids[0]).empty());
  EXPECT_TRUE(watch(large));
  EXPECT_EQ(history().requests.size(), 9u);
  reopen();
  EXPECT_EQ(answer_error(ids[0]), ErrorKind::kGone);
  EXPECT_TRUE(watch(large));
  ASSERT_TRUE(store_->prune());
  EXPECT_THAT(raw_content().nameless(), IsEmpty());
}

TEST_F(RetentionTest, NothingGoesWhileThereIsRoom) {
  bound(24h, 100 * limits::kMiB);
  const Uuid id = ended(limits::kMiB);
  ASSERT_TRUE(store_->prune());
  EXPECT_TRUE(watch(id));
}

TEST_F(RetentionTest, WhatIsTooOldIsForgottenWhole) {
  bound(24h, std::nullopt);
  const Uuid old = ended(limits::kMiB, {{"kind", "gemm"}});
  const Uuid small = ended(10, {{"kind", "gemm"}});
  const Uuid queued = admitted(submission());
  clock_.advance(25h);
  const Uuid young = ended(10);  // claims `queued`, which was submitted before
  reopen();                      // by then every audit is copied
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(status(old).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(status(small).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(audit_in(*store_, old).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(status(queued).error().kind, ErrorKind::kNotFound) << "it has ended, and was submitted too long ago";
  EXPECT_EQ(state_of(young), State::kQueued);
  HistoryQuery query;
  query.label.emplace("kind", std::nullopt);
  EXPECT_THAT(history(query).requests, IsEmpty());
  // The id is free again.
  Submission again = submission();
  again.request_id = old;
  EXPECT_EQ(admit(again)->kind, Admission::Kind::kAdmitted);
  EXPECT_EQ(events_of(audit(old)).front(), "admitted");
  EXPECT_EQ(audit(old).size(), 2u) << "nothing of its first life";
}

TEST_F(RetentionTest, WhatHasNotEndedStaysHoweverOldItIs) {
  bound(1h, 1);
  const Uuid queued = admitted(submission());
  const Uuid running = admitted(submission());
  clock_.advance(100h);
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(state_of(queued), State::kQueued);
  EXPECT_EQ(state_of(running), State::kQueued);
}

TEST_F(RetentionTest, ManyGoInSmallSteps) {
  bound(std::nullopt, 1);
  std::vector<Uuid> ids;
  for (int i = 0; i < 3 * Retention::kStepRows; ++i) ids.push_back(ended(10));
  ASSERT_TRUE(store_->prune());
  for (const Uuid& id : ids) EXPECT_EQ(answer_error(id), ErrorKind::kGone);
  HistoryQuery query;
  query.count_max = 1000;
  EXPECT_EQ(history(query).requests.size(), ids.size());
}

}  // namespace
}  // namespace kcoral::store
