// The life of requests, through the interface.
#include "store/store.h"

#include <sys/resource.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;
using testing::ElementsAre;
using testing::HasSubstr;

class StoreTest : public StoreFixture {};

/// While it lives, this process can open nothing more.
class NoDescriptors {
 public:
  NoDescriptors() {
    KCORAL_CHECK(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none{0, before_.rlim_max};
    KCORAL_CHECK(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoDescriptors() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST_F(StoreTest, ARequestGoesAllTheWay) {
  const StagedBlob blob = staged("content of a blob");
  Submission sent = submission_with({blob});
  sent.owner = "token-a";
  sent.max_attempts = 2;
  sent.program.options.labels = {{"suite", "nightly \"x\""}};
  sent.program.options.priority = 7;
  sent.program.options.timeout_seconds = 1.5;
  sent.program.options.output_limit_bytes = 99;
  const std::string text = sent.program_text;
  const Digest sha256 = sent.program_sha256;
  const Uuid id = admitted(std::move(sent));
  EXPECT_EQ(store_->counts().queued, 1u);

  clock_.advance(std::chrono::milliseconds(250));
  const auto claimed = claim({"executor-3", 4242});
  ASSERT_TRUE(claimed);
  EXPECT_EQ(claimed->fence, (Fence{id, 1}));
  EXPECT_EQ(claimed->gpu_count, 1);
  EXPECT_EQ(claimed->timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(claimed->output_limit_bytes, 99u);
  EXPECT_EQ(claimed->queued, std::chrono::milliseconds(250));
  EXPECT_EQ(claimed->program->view().value(), text);
  ASSERT_EQ(claimed->blobs.size(), 1u);
  EXPECT_EQ(claimed->blobs[0].sha256, blob.sha256);
  EXPECT_EQ(claimed->blobs[0].content->view().value(), "content of a blob");
  EXPECT_EQ(store_->counts().queued, 0u);
  EXPECT_EQ(store_->counts().in_progress, 1u);

  store_->mark_running(claimed->fence, 4711);
  store_->append_audit(claimed->fence, {{clock_.wall_now(), R"("event":"instruction_started","index":0)"}});
  Slot<Result<Store::AnswerPtr>> watched;
  store_->watch(id, watched.setter());
  Completion ended = completion(answer(R"({"status":"COMPLETED"})", {"part one"}));
  ended.records = {{clock_.wall_now(), R"("event":"returned","key":"k")"}};
  ended.results_summary = R"([{"key":"k","type":"bytes","size":8}])";
  const auto sent_answer = ended.answer;
  ASSERT_TRUE(finish(claimed->fence, std::move(ended)));

  EXPECT_EQ(watched.get().value(), sent_answer) << "a watcher gets the very object";
  const RequestStatus row = status(id).value();
  EXPECT_EQ(row.state, State::kCompleted);
  EXPECT_EQ(row.owner, "token-a");
  EXPECT_EQ(row.client, "tester");
  EXPECT_EQ(row.attempt, 1);
  EXPECT_EQ(row.max_attempts, 2);
  EXPECT_EQ(row.priority, 7);
  EXPECT_EQ(row.executor, "executor-3");
  EXPECT_EQ(row.labels.at("suite"), "nightly \"x\"");
  EXPECT_EQ(row.program_sha256, sha256);
  EXPECT_EQ(row.started_at, row.submitted_at + std::chrono::milliseconds(250));
  EXPECT_TRUE(row.finished_at);
  EXPECT_EQ(store_->counts().in_progress, 0u);

  const auto records = audit(id);
  expect_sound_audit(records);
  EXPECT_THAT(events_of(records),
              ElementsAre("admitted", "queued", "assigned", "running", "instruction_started", "returned", "finished"));
  const auto first = nlohmann::json::parse(records[0]);
  EXPECT_EQ(first["client"], "tester");
  EXPECT_EQ(first["peer"], "127.0.0.1");
  EXPECT_EQ(first["program_bytes"], text.size());
  EXPECT_EQ(first["blobs"], 1);
  EXPECT_EQ(first["blob_bytes"], 17);
  EXPECT_EQ(first["program_sha256"], sha256.hex());
  const auto assigned = nlohmann::json::parse(records[2]);
  EXPECT_EQ(assigned["executor"], "executor-3");
  EXPECT_EQ(assigned["pid"], 4242);
  EXPECT_EQ(assigned["attempt"], 1);
  EXPECT_EQ(nlohmann::json::parse(records[3])["pid"], 4711);
  EXPECT_EQ(nlohmann::json::parse(records.back())["state"], "completed");
}

TEST_F(StoreTest, AnUnknownIdIsNotFound) {
  EXPECT_EQ(watch(Uuid::random()).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(status(Uuid::random()).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(audit_in(*store_, Uuid::random()).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(finish({Uuid::random(), 1}, completion(answer("{}"))).error().kind, ErrorKind::kNotFound);
  EXPECT_FALSE(claim());
}

TEST_F(StoreTest, AWatchOnAnEndedRequestReadsItsAnswer) {
  const Uuid id = admitted(submission());
  const auto sent = answer(R"({"n":1})", {"abc", "", "defg"});
  ASSERT_TRUE(finish(claim()->fence, completion(sent)));
  const auto read = watch(id).value();
  EXPECT_NE(read, sent);
  EXPECT_EQ(body_of(*read), body_of(*sent));
  EXPECT_EQ(read->content_type(), sent->content_type());
}

TEST_F(StoreTest, ARemovedWatchDoesNotFire) {
  const Uuid id = admitted(submission());
  std::atomic<int> fired{0};
  const auto removed = store_->watch(id, [&](const Result<Store::AnswerPtr>&) { ++fired; });
  store_->unwatch(removed);
  ASSERT_TRUE(finish(claim()->fence, completion(answer("{}"))));
  EXPECT_EQ(fired, 0);
  store_->unwatch(removed);
}

TEST_F(StoreTest, AWatchMayRemoveItselfInItsCallback) {
  const Uuid id = admitted(submission());
  Store::WatchId self = 0;
  Slot<bool> fired;
  self = store_->watch(id, [&, set = fired.setter()](const Result<Store::AnswerPtr>&) {
    store_->unwatch(self);
    set(true);
  });
  ASSERT_TRUE(finish(claim()->fence, completion(answer("{}"))));
  EXPECT_TRUE(fired.get());
}

TEST_F(StoreTest, TheSameSubmissionAttachesAndAnotherConflicts) {
  Submission first = submission("program one");
  first.owner = "a";
  const Submission same = first;
  Submission other_program = first;
  other_program.program_text = "program two";
  other_program.program_sha256 = Sha256::of("program two");
  Submission other_owner = first;
  other_owner.owner = "b";
  admitted(std::move(first));

  EXPECT_EQ(admit(same)->kind, Admission::Kind::kAttached);
  const auto conflict = admit(other_program);
  EXPECT_EQ(conflict.error().kind, ErrorKind::kConflict);
  const auto foreign = admit(other_owner);
  EXPECT_EQ(foreign.error().kind, ErrorKind::kConflict);
  EXPECT_EQ(foreign.error().message, conflict.error().message) << "reveals nothing about whose it is";
  EXPECT_EQ(store_->counts().queued, 1u);
  ASSERT_TRUE(claim());
  EXPECT_FALSE(claim()) << "attaching does not run it again";
}

TEST_F(StoreTest, ACacheMissConsumesNothingAndKeepsWhatWasStaged) {
  const StagedBlob held = staged("here");
  const StagedBlob missing_one = staged("not here");
  const StagedBlob missing_two = staged("nor here");
  Submission sent = submission_with({missing_one, held, missing_two});
  sent.staged = {held};
  const auto admission = admit(sent);
  ASSERT_TRUE(admission);
  EXPECT_EQ(admission->kind, Admission::Kind::kCacheMiss);
  EXPECT_THAT(admission->missing, ElementsAre(missing_one.sha256, missing_two.sha256)) << "in program order";
  EXPECT_EQ(status(sent.request_id).error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(store_->counts().queued, 0u);

  reopen();
  sent.staged = {missing_one, missing_two};
  EXPECT_EQ(admit(sent)->kind, Admission::Kind::kAdmitted);
  EXPECT_EQ(claim()->blobs[1].content->view().value(), "here");
}

TEST_F(StoreTest, AKnownRequestIsAttachedToThoughItsBlobsAreGone) {
  const StagedBlob blob = staged("precious");
  Submission sent = submission_with({blob});
  admitted(sent);
  raw_content().damage_blob(blob.sha256, "precioux");
  reopen();
  const auto claimed = claim();  // finds the damage
  EXPECT_FALSE(claimed);
  sent.staged = {};
  EXPECT_EQ(admit(sent)->kind, Admission::Kind::kAttached);
}

TEST_F(StoreTest, ABlobMustHaveTheLengthThatATensorDemands) {
  const StagedBlob blob = staged("12345678");
  Submission sent = submission_with({blob});
  sent.program.instructions.resize(1);
  sent.program.instructions[0].id = "x";
  sent.program.tensor_lengths = {{.instruction = 0, .blob = blob.sha256, .bytes = 12}};
  EXPECT_EQ(admit(sent).error().kind, ErrorKind::kParse);
  EXPECT_EQ(status(sent.request_id).error().kind, ErrorKind::kNotFound);
  sent.program.tensor_lengths[0].bytes = 8;
  EXPECT_EQ(admit(sent)->kind, Admission::Kind::kAdmitted);
}

TEST_F(StoreTest, ClaimsFollowPriorityAndThenSubmission) {
  std::vector<Uuid> ids;
  for (const int priority : {0, 5, -3, 5, 0}) {
    Submission sent = submission();
    sent.program.options.priority = priority;
    ids.push_back(admitted(std::move(sent)));
  }
  std::vector<Uuid> order;
  while (const auto claimed = claim()) order.push_back(claimed->fence.request_id);
  EXPECT_THAT(order, ElementsAre(ids[1], ids[3], ids[0], ids[4], ids[2]));
}

TEST_F(StoreTest, AnswersOfEverySizeComeBackAsTheyWere) {
  std::vector<std::pair<Uuid, std::string>> sent;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, limits::kAnswerInRowBytesMax - 2,
                               limits::kAnswerInRowBytesMax - 1, limits::kAnswerInRowBytesMax, 3 * limits::kMiB}) {
    const Uuid id = admitted(submission());
    const auto wanted = answer("{}", {std::string(bytes / 2, 'a'), std::string(bytes - bytes / 2, 'b')});
    ASSERT_TRUE(finish(claim()->fence, completion(wanted)));
    sent.emplace_back(id, body_of(*wanted));
  }
  for (const bool again : {false, true}) {
    if (again) reopen();
    for (const auto& [id, body] : sent) EXPECT_TRUE(body_of(*watch(id).value()) == body) << body.size();
  }
}

TEST_F(StoreTest, AnIdleExecutorIsGivenARequestInTheCommitThatAdmitsIt) {
  pool_.offer({"executor-7", 77});
  store_->serve(pool_);
  const Uuid id = admitted(submission());
  EXPECT_EQ(state_of(id), State::kAssigned) << "before anybody else could see it queued";
  EXPECT_EQ(status(id)->executor, "executor-7");
  EXPECT_FALSE(claim({"executor-8", 88}));
}

TEST_F(StoreTest, ARequestThatIsQueuedAgainGoesToWhoeverIsIdle) {
  Submission sent = submission();
  sent.max_attempts = 2;
  const Uuid id = admitted(std::move(sent));
  const Fence fence = claim()->fence;
  pool_.offer({"executor-7", 77});
  ASSERT_TRUE(abandon(fence, "executor died"));
  EXPECT_EQ(state_of(id), State::kAssigned);
  EXPECT_EQ(status(id)->executor, "executor-7");
}

TEST_F(StoreTest, ExecutorsForSeveralGpusTakeOnlyWhatNeedsThem) {
  const Uuid one = admitted(submission());
  Submission sent = submission();
  sent.program.options.gpu_count = 2;
  const Uuid two = admitted(std::move(sent));
  EXPECT_EQ(pool_.claim(*store_, {"both", 1}, /*has_several_gpus=*/true).value()->fence.request_id, two);
  EXPECT_EQ(claim()->fence.request_id, one);
}

TEST_F(StoreTest, WhatNeedsMoreGpusThanTheServerHasSinceItsRestartIsRejected) {
  Submission sent = submission();
  sent.program.options.gpu_count = 4;
  const Uuid large = admitted(std::move(sent));
  const Uuid small = admitted(submission());
  store_.reset();
  store_ = DurableStore::open({.data_dir = data_dir_, .gpu_count_max = 2}, clock_).value();
  ASSERT_TRUE(store_->recover());
  EXPECT_EQ(state_of(large), State::kRejected);
  EXPECT_THAT(watch(large).value()->document, HasSubstr("wants 4 GPUs"));
  EXPECT_EQ(store_->counts().queued, 1u);
  EXPECT_EQ(claim()->fence.request_id, small);
}

TEST_F(StoreTest, AStaleFenceIsRefused) {
  Submission sent = submission();
  sent.max_attempts = 3;
  const Uuid id = admitted(std::move(sent));
  const Fence first = claim()->fence;
  EXPECT_EQ(finish({id, 2}, completion(answer("{}"))).error().kind, ErrorKind::kConflict);
  ASSERT_TRUE(abandon(first, "executor died"));

  Completion late = completion(answer(R"({"who":"late"})"));
  late.state = State::kFailed;
  EXPECT_EQ(finish(first, late).error().kind, ErrorKind::kConflict) << "also while it waits for its next attempt";
  EXPECT_EQ(abandon(first, "again").error().kind, ErrorKind::kConflict);
  const Fence second = claim()->fence;
  EXPECT_EQ(second.attempt, 2);
  EXPECT_EQ(finish(first, late).error().kind, ErrorKind::kConflict);
  EXPECT_EQ(abandon(first, "again").error().kind, ErrorKind::kConflict);
  store_->mark_running(first, 1);
  store_->append_audit(first, {{clock_.wall_now(), R"("event":"stale")"}});

  ASSERT_TRUE(finish(second, completion(answer(R"({"who":"second"})"))));
  EXPECT_EQ(finish(second, completion(answer(R"({"who":"twice"})"))).error().kind, ErrorKind::kConflict);
  EXPECT_EQ(abandon(second, "too late").error().kind, ErrorKind::kConflict);
  EXPECT_EQ(watch(id).value()->document, R"({"who":"second"})");
  EXPECT_THAT(events_of(audit(id)), ElementsAre("admitted", "queued", "assigned", "requeued", "assigned", "finished"));
}

TEST_F(StoreTest, AnAbandonedRequestIsQueuedAgainAndThenInterrupted) {
  Submission sent = submission();
  sent.max_attempts = 2;
  const Uuid id = admitted(std::move(sent));
  Slot<Result<Store::AnswerPtr>> watched;
  store_->watch(id, watched.setter());

  ASSERT_TRUE(abandon(claim()->fence, "executor 0 was killed"));
  EXPECT_EQ(state_of(id), State::kQueued);
  EXPECT_EQ(store_->counts().queued, 1u);
  EXPECT_FALSE(watched.is_ready());
  const auto again = claim();
  EXPECT_EQ(again->fence.attempt, 2);
  ASSERT_TRUE(abandon(again->fence, "executor 1 was killed"));
  EXPECT_EQ(state_of(id), State::kInterrupted);
  EXPECT_EQ(store_->counts().queued, 0u);
  EXPECT_EQ(store_->counts().in_progress, 0u);

  const auto read = watched.get().value();
  EXPECT_EQ(read->http_status, 500);
  EXPECT_THAT(read->document, HasSubstr("executor 1 was killed"));
  EXPECT_THAT(read->document, HasSubstr(R"("engine")"));
  const RequestStatus row = status(id).value();
  EXPECT_EQ(row.error_kind, "engine");
  EXPECT_THAT(row.error_message, HasSubstr("executor 1 was killed"));
  reopen();
  EXPECT_EQ(body_of(*watch(id).value()), body_of(*read));
}

TEST_F(StoreTest, TheAuditOfALostRunSaysThatRecordsMayBeMissing) {
  Submission sent = submission();
  sent.max_attempts = 3;
  const Uuid id = admitted(std::move(sent));
  ASSERT_TRUE(abandon(claim()->fence, "lost before it ran"));
  for (int i = 0; i < 2; ++i) {
    const Fence fence = claim()->fence;
    store_->mark_running(fence, 4711);
    ASSERT_TRUE(abandon(fence, "executor 0 was killed"));
  }
  expect_sound_audit(audit(id));
  EXPECT_THAT(events_of(audit(id)), ElementsAre("admitted", "queued", "assigned", "requeued", "assigned", "running",
                                                "gap", "requeued", "assigned", "running", "gap", "finished"));
  EXPECT_THAT(audit(id)[6], HasSubstr("executor 0 was killed; records of the last 100 ms may be missing"));
}

TEST_F(StoreTest, OnlyAQueuedRequestIsRejected) {
  const Uuid running = admitted(submission());
  const Fence fence = claim()->fence;
  const Uuid queued = admitted(submission());
  Slot<Result<Store::AnswerPtr>> watched;
  store_->watch(queued, watched.setter());
  const auto busy = std::make_shared<const schema::Answer>(
      schema::make_error_answer(queued, {ErrorKind::kBusy, "no executor was free for 1800 s"}, 5));
  store_->reject_if_queued(running, busy, "no executor was free");
  store_->reject_if_queued(queued, busy, "no executor was free");
  EXPECT_EQ(watched.get().value(), busy);
  EXPECT_EQ(state_of(queued), State::kRejected);
  EXPECT_EQ(status(queued)->error_kind, "busy");
  EXPECT_EQ(state_of(running), State::kAssigned);
  EXPECT_FALSE(claim());
  ASSERT_TRUE(finish(fence, completion(answer("{}"))));
  reopen();
  EXPECT_EQ(watch(queued).value()->retry_after_seconds, 5);
  EXPECT_EQ(watch(queued).value()->http_status, 503);
  EXPECT_THAT(events_of(audit(queued)), ElementsAre("admitted", "queued", "finished"));
}

TEST_F(StoreTest, ARequestWhoseBlobIsDamagedFailsAndTheNextIsClaimed) {
  const StagedBlob blob = staged("precious content");
  const Uuid damaged = admitted(submission_with({blob}));
  const Uuid sound = admitted(submission());
  raw_content().damage_blob(blob.sha256, "precious contenx");
  reopen();  // nothing is hot any more

  const auto claimed = claim();
  ASSERT_TRUE(claimed);
  EXPECT_EQ(claimed->fence.request_id, sound);
  EXPECT_EQ(state_of(damaged), State::kFailed);
  const auto read = watch(damaged).value();
  EXPECT_EQ(read->http_status, 500);
  EXPECT_THAT(read->document, HasSubstr(blob.sha256.hex()));

  Submission again = submission_with({blob});
  again.staged = {};
  EXPECT_EQ(admit(again)->kind, Admission::Kind::kCacheMiss) << "a damaged blob is not held";
  EXPECT_EQ(admit(submission_with({blob}))->kind, Admission::Kind::kAdmitted);
  EXPECT_EQ(claim()->blobs[0].content->view().value(), "precious content");
}

TEST_F(StoreTest, AShortageLeavesTheRequestQueuedWithAllItsAttempts) {
  const Uuid id = admitted(submission_with({staged("content of a blob")}));
  const Uuid next = admitted(submission());
  reopen(0);  // nothing is hot
  const Result<std::optional<Claim>> refused = [&] {
    const NoDescriptors shortage;
    return try_claim();
  }();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kEnvironment);
  EXPECT_EQ(state_of(id), State::kQueued);
  EXPECT_EQ(status(id)->attempt, 0);
  EXPECT_EQ(store_->counts().queued, 2u);
  EXPECT_EQ(store_->counts().in_progress, 0u);

  const auto claimed = claim();
  EXPECT_EQ(claimed->fence, (Fence{id, 1})) << "at its old place";
  EXPECT_EQ(claim()->fence.request_id, next);
  ASSERT_TRUE(finish(claimed->fence, completion(answer("{}"))));
  expect_sound_audit(audit(id));
  EXPECT_THAT(events_of(audit(id)), ElementsAre("admitted", "queued", "assigned", "requeued", "assigned", "finished"));
}

TEST_F(StoreTest, AShortageThatStaysFailsTheRequestAndLetsOthersPass) {
  const Uuid id = admitted(submission_with({staged("content of a blob")}));
  const Uuid next = admitted(submission());
  reopen(0);  // nothing is hot
  const auto claim_without_descriptors = [this] {
    const NoDescriptors shortage;
    return try_claim();
  };
  for (int i = 0; i < limits::kPutBacksMax; ++i) {
    ASSERT_FALSE(claim_without_descriptors());
    ASSERT_EQ(state_of(id), State::kQueued);
  }
  ASSERT_FALSE(claim_without_descriptors()) << "the next one meets the same shortage, for the first time";
  EXPECT_EQ(state_of(id), State::kFailed);
  EXPECT_EQ(state_of(next), State::kQueued);
  const RequestStatus row = status(id).value();
  EXPECT_EQ(row.error_kind, info(ErrorKind::kEnvironment).wire_name);
  EXPECT_THAT(row.error_message, HasSubstr("cannot be read"));
  EXPECT_EQ(store_->counts().queued, 1u);
  EXPECT_EQ(store_->counts().in_progress, 0u);
}

TEST_F(StoreTest, AReaderThatCannotBeOpenedIsAShortage) {
  Readers readers(data_dir_ + "/queue.sqlite3");
  const NoDescriptors shortage;
  EXPECT_EQ(readers.lease().error().kind, ErrorKind::kEnvironment);
}

TEST_F(StoreTest, LongProgramsAndManyBlobsComeBackWhole) {
  std::string text;
  for (int i = 0; text.size() < 3 * limits::kMiB; ++i) text += fmt::format("line {} of a long program\n", i);
  std::vector<StagedBlob> blobs;
  for (int i = 0; i < 40; ++i) blobs.push_back(staged(fmt::format("blob {}", i)));
  std::string big(2 * limits::kMiB + 5, 'x');
  big[1234567] = 'y';
  blobs.push_back(staged(big));
  blobs.push_back(staged(""));
  Submission sent = submission_with(blobs);
  sent.program_text = text;
  sent.program_sha256 = Sha256::of(text);
  admitted(std::move(sent));
  reopen(0);  // without a cache: all from disk
  const auto claimed = claim();
  ASSERT_TRUE(claimed);
  EXPECT_TRUE(claimed->program->view().value() == text);
  ASSERT_EQ(claimed->blobs.size(), blobs.size());
  for (size_t i = 0; i < blobs.size(); ++i) {
    EXPECT_EQ(claimed->blobs[i].sha256, blobs[i].sha256);
    EXPECT_TRUE(claimed->blobs[i].content->view().value() == blobs[i].content->view().value());
  }
}

TEST_F(StoreTest, AfterClosingNothingIsAcceptedAndWhoeverWaitsIsTold) {
  const Uuid id = admitted(submission());
  Slot<Result<Store::AnswerPtr>> watched;
  store_->watch(id, watched.setter());
  store_->close();
  EXPECT_EQ(watched.get().error().kind, ErrorKind::kBusy);
  EXPECT_EQ(admit(submission()).error().kind, ErrorKind::kBusy);
  EXPECT_EQ(watch(id).error().kind, ErrorKind::kBusy);
  EXPECT_EQ(finish({id, 1}, completion(answer("{}"))).error().kind, ErrorKind::kBusy);
  EXPECT_EQ(store_->recover().error().kind, ErrorKind::kBusy);
  reopen();
  EXPECT_EQ(state_of(id), State::kQueued) << "kept for the next start";
}

}  // namespace
}  // namespace kcoral::store
