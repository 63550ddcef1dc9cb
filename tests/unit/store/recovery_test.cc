// What a start finds, and what it refuses.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "store/sqlite.h"
#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;
using testing::ElementsAre;
using testing::HasSubstr;

class RecoveryTest : public StoreFixture {};

TEST_F(RecoveryTest, QueuedRequestsAreStillQueued) {
  const Uuid first = admitted(submission());
  const Uuid second = admitted(submission());
  reopen();
  EXPECT_EQ(store_->counts().queued, 2u);
  EXPECT_EQ(claim()->fence.request_id, first);
  EXPECT_EQ(claim()->fence.request_id, second);
}

TEST_F(RecoveryTest, WhatRanIsQueuedAgainWhileAttemptsAreLeft) {
  Submission twice = submission();
  twice.max_attempts = 2;
  const Uuid retried = admitted(std::move(twice));
  const Uuid once = admitted(submission());
  const Fence first = claim()->fence;
  const Fence only = claim()->fence;
  store_->mark_running(first, 100);
  store_->mark_running(only, 101);

  reopen();
  EXPECT_EQ(state_of(retried), State::kQueued);
  EXPECT_EQ(state_of(once), State::kInterrupted);
  EXPECT_EQ(store_->counts().queued, 1u);
  EXPECT_EQ(store_->counts().in_progress, 0u);
  EXPECT_THAT(watch(once).value()->document, HasSubstr("the server ended while it ran"));
  EXPECT_THAT(events_of(audit(retried)), ElementsAre("admitted", "queued", "assigned", "running", "gap", "requeued"));
  EXPECT_THAT(events_of(audit(once)), ElementsAre("admitted", "queued", "assigned", "running", "gap", "finished"));
  expect_sound_audit(audit(once));
  EXPECT_EQ(claim()->fence, (Fence{retried, 2}));
  EXPECT_EQ(finish(first, completion(answer("{}"))).error().kind, ErrorKind::kConflict);
}

TEST_F(RecoveryTest, AnswersComeBackByteForByte) {
  const std::vector<std::vector<std::string>> all_parts = {
      {},
      {""},
      {"", "a", "", std::string(3 * limits::kMiB + 17, '\xfe'), "", std::string(limits::kMiB, '\0'), "end"},
      {std::string(limits::kMiB - 2, 'q')},
  };
  std::vector<Uuid> ids;
  std::vector<std::shared_ptr<const schema::Answer>> sent;
  for (const auto& parts : all_parts) {
    ids.push_back(admitted(submission()));
    sent.push_back(answer(fmt::format(R"({{"parts":{},"text":"äöü\u0000"}})", parts.size()), parts));
    ASSERT_TRUE(finish(claim()->fence, completion(sent.back())));
  }
  ids.push_back(admitted(submission()));
  sent.push_back(std::make_shared<const schema::Answer>(
      schema::make_error_answer(ids.back(), {ErrorKind::kTimeout, "the deadline passed"})));
  Completion timed_out = completion(sent.back());
  timed_out.state = State::kTimedOut;
  ASSERT_TRUE(finish(claim()->fence, std::move(timed_out)));

  reopen();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto read = watch(ids[i]).value();
    EXPECT_TRUE(body_of(*read) == body_of(*sent[i])) << i;
    EXPECT_EQ(read->content_type(), sent[i]->content_type());
    EXPECT_EQ(read->http_status, sent[i]->http_status);
    EXPECT_EQ(read->body_bytes(), sent[i]->body_bytes());
    ASSERT_EQ(read->parts.size(), sent[i]->parts.size());
    for (size_t part = 0; part < read->parts.size(); ++part) {
      EXPECT_EQ(read->parts[part].sha256, sent[i]->parts[part].sha256);
    }
  }
}

TEST_F(RecoveryTest, AnAnswerThatNoRowCameToReferToIsSwept) {
  Submission twice = submission();
  twice.max_attempts = 2;
  const Uuid id = admitted(std::move(twice));
  claim();
  store_.reset();
  // As if the server had died between storing the answer and committing the outcome.
  const auto orphan = store_answer(*Content::open(content_dir_).value(), id,
                                   *answer(R"({"orphan":true})", {std::string(2 * limits::kMiB, 'o')}));
  ASSERT_TRUE(orphan);
  reopen();
  store_.reset();
  EXPECT_FALSE(Content::open(content_dir_).value()->artifact_header(id, *orphan).value());
  reopen();
  ASSERT_TRUE(finish(claim()->fence, completion(answer(R"({"true":1})"))));
  EXPECT_EQ(watch(id).value()->document, R"({"true":1})");
}

TEST_F(RecoveryTest, TheAuditRunsOnAcrossStartsAndNeverBackwards) {
  Submission sent = submission();
  sent.max_attempts = 3;
  const Uuid id = admitted(std::move(sent));
  ASSERT_TRUE(abandon(claim()->fence, "one"));
  clock_.step_wall(-std::chrono::hours(5));
  reopen();
  const auto claimed = claim();
  ASSERT_TRUE(claimed);
  EXPECT_GE(claimed->queued.count(), 0);
  ASSERT_TRUE(finish(claimed->fence, completion(answer("{}"))));
  store_->append_audit(claimed->fence, {{clock_.wall_now(), R"("event":"process_exited","code":0)"}});
  reopen();
  expect_sound_audit(audit(id));
  EXPECT_THAT(events_of(audit(id)),
              ElementsAre("admitted", "queued", "assigned", "requeued", "assigned", "finished", "process_exited"));
}

unsigned mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST_F(RecoveryTest, TheDirectoryIsPrivate) {
  EXPECT_EQ(mode_of(data_dir_), 0700u);
  store_.reset();
  ASSERT_EQ(::chmod(data_dir_.c_str(), 0755), 0);
  open();
  EXPECT_EQ(mode_of(data_dir_), 0700u);
}

TEST(DataDirTest, ABareDirectoryBecomesOurs) {
  const TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  std::filesystem::create_directory(dir.path() + "/lost+found");
  std::ofstream(dir.path() + "/lock") << "4711";  // of a server that died before it made its database
  EXPECT_TRUE(DataDir::open(dir.path()));
  EXPECT_EQ(mode_of(dir.path()), 0700u);
}

std::string refusal(const std::string& data_dir) {
  FakeClock clock;
  auto opened = open_store({.data_dir = data_dir}, clock);
  EXPECT_FALSE(opened);
  if (opened) return "";
  EXPECT_EQ(opened.error().kind, ErrorKind::kEnvironment);
  EXPECT_EQ(opened.error().message.find('\n'), std::string::npos) << "one line";
  EXPECT_THAT(opened.error().message, HasSubstr(data_dir));
  return opened.error().message;
}

TEST_F(RecoveryTest, ASecondServerIsRefused) {
  EXPECT_THAT(refusal(data_dir_), HasSubstr("another server has it"));
  store_.reset();
  open();
}

TEST(RefusalTest, WhatIsNoDirectory) {
  const TempDir dir;
  std::ofstream(dir.path() + "/file") << "text";
  EXPECT_THAT(refusal(dir.path() + "/file"), HasSubstr("Not a directory"));
  EXPECT_THAT(refusal(dir.path() + "/file/below"), HasSubstr("ot a directory"));
  EXPECT_THAT(refusal("/proc/kcoral"), HasSubstr("cannot be used"));
}

TEST(RefusalTest, ADirectoryOfSomethingElse) {
  const TempDir dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 01777), 0);
  std::ofstream(dir.path() + "/somebody's file") << "text";
  EXPECT_THAT(refusal(dir.path()), HasSubstr("exists and is no kcoral data directory"));
  EXPECT_EQ(mode_of(dir.path()), 01777u);
  EXPECT_FALSE(std::filesystem::exists(dir.path() + "/lock"));
}

TEST(RefusalTest, AFileThatIsNoDatabase) {
  const TempDir dir;
  std::ofstream(dir.path() + "/queue.sqlite3") << std::string(10000, 'x');
  EXPECT_THAT(refusal(dir.path()), HasSubstr("not a database of kcoral"));
}

TEST(RefusalTest, ADatabaseOfSomebodyElse) {
  const TempDir dir;
  {
    auto database = Database::open(dir.path() + "/queue.sqlite3", Database::Access::kWriter).value();
    ASSERT_TRUE(database->execute("CREATE TABLE notes (text TEXT)"));
  }
  EXPECT_THAT(refusal(dir.path()), HasSubstr("not a database of kcoral"));
}

TEST_F(RecoveryTest, ADatabaseOfANewerServer) {
  store_.reset();
  {
    auto database = Database::open(data_dir_ + "/queue.sqlite3", Database::Access::kWriter).value();
    ASSERT_TRUE(database->execute("PRAGMA user_version=999"));
  }
  EXPECT_THAT(refusal(data_dir_), HasSubstr("newer"));
}

}  // namespace
}  // namespace kcoral::store
