#include "store/writer.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <future>

#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using testing::ElementsAre;

class WriterTest : public testing::Test {
 protected:
  void SetUp() override {
    database_ = Database::open(dir_.path() + "/db", Database::Access::kWriter).value();
    ASSERT_TRUE(database_->execute("PRAGMA journal_mode=WAL; CREATE TABLE t (n INTEGER NOT NULL, text TEXT) STRICT"));
    database_->make_io_errors_fatal();
    insert_ = database_->prepare("INSERT INTO t VALUES (?, ?)").value();
    writer_ = Writer::create(*database_, undo_log_,
                             {.apply = [this]() -> Result<Writer::AfterCommit> { return Writer::AfterCommit([] {}); },
                              .failed = [](const Error&) {}},
                             [this] { ++batches_; })
                  .value();
  }

  Writer::Operation insert(int n, std::string text = "") {
    return {.apply = [this, n, text]() -> Result<Writer::AfterCommit> {
              if (auto done = insert_.execute(n, text); !done) return fail(done.error());
              if (n < 0) return fail(ErrorKind::kConflict, "negative");
              return Writer::AfterCommit([this, n] {
                in_transaction_ |= database_->in_transaction();
                log_.push_back(fmt::format("done {}", n));
              });
            },
            .failed =
                [this, n](const Error& error) {
                  log_.push_back(fmt::format("failed {} {}", n, info(error.kind).wire_name));
                },
            .bytes = text.size()};
  }

  /// An operation that occupies the writer from when it is reached until it is released.
  struct Hold {
    std::promise<void> reached;
    std::promise<void> released;
  };
  std::shared_ptr<Hold> submit_hold() {
    auto hold = std::make_shared<Hold>();
    writer_->submit({.apply = [hold]() -> Result<Writer::AfterCommit> {
                       hold->reached.set_value();
                       hold->released.get_future().wait();
                       return Writer::AfterCommit([] {});
                     },
                     .failed = [](const Error&) {}});
    return hold;
  }
  /// What is submitted before its release becomes one batch.
  std::shared_ptr<Hold> hold() {
    auto hold = submit_hold();
    hold->reached.get_future().wait();
    return hold;
  }

  /// Requires: the writer is closed.
  std::string rows() { return database_->query_text("SELECT group_concat(n, ' ') FROM t").value(); }

  TempDir dir_;
  std::unique_ptr<Database> database_;
  Statement insert_;
  std::vector<std::string> log_;  // the writer's thread; read once it is closed
  bool in_transaction_ = false;
  std::atomic<int> batches_{0};
  UndoLog undo_log_;
  std::unique_ptr<Writer> writer_;
};

TEST_F(WriterTest, WhatWaitsIsCommittedTogetherAndInOrder) {
  const auto held = hold();
  for (int n = 1; n <= 10; ++n) writer_->submit(insert(n));
  held->released.set_value();
  writer_->close();
  EXPECT_EQ(batches_, 2);
  EXPECT_EQ(rows(), "1 2 3 4 5 6 7 8 9 10");
  EXPECT_EQ(log_.front(), "done 1");
  EXPECT_EQ(log_.back(), "done 10");
  EXPECT_FALSE(in_transaction_) << "callbacks come after the commit";
}

TEST_F(WriterTest, AFailedOperationIsUndoneAlone) {
  const auto held = hold();
  for (const int n : {1, -2, 3}) writer_->submit(insert(n));
  held->released.set_value();
  writer_->close();
  EXPECT_THAT(log_, ElementsAre("done 1", "failed -2 conflict", "done 3"));
  EXPECT_EQ(rows(), "1 3");
}

TEST_F(WriterTest, ABatchIsBoundedInOperationsAndBytes) {
  const auto first = hold();
  for (int n = 0; n < 130; ++n) writer_->submit(insert(n));
  const auto second = submit_hold();
  first->released.set_value();
  second->reached.get_future().wait();
  EXPECT_EQ(batches_, 1 + 2) << "64 and 64, and the last 2 with the second hold";
  for (int n = 0; n < 4; ++n) writer_->submit(insert(n, std::string(limits::kMiB / 2 + 1, 'x')));
  second->released.set_value();
  writer_->close();
  EXPECT_EQ(batches_, 1 + 2 + 1 + 4);
}

TEST_F(WriterTest, ADelayedOperationIsCommittedWithoutCompany) {
  std::promise<void> committed;
  writer_->submit(
      {.apply = [&]() -> Result<Writer::AfterCommit> { return Writer::AfterCommit([&] { committed.set_value(); }); },
       .failed = [](const Error&) {}},
      Writer::Urgency::kDelayed);
  EXPECT_EQ(committed.get_future().wait_for(kPatience), std::future_status::ready);
  writer_->submit(insert(1), Writer::Urgency::kDelayed);
  writer_->close();
  EXPECT_EQ(rows(), "1") << "closing does not lose it";
}

TEST_F(WriterTest, WhatIsNotDelayedComesFirst) {
  const auto held = hold();
  writer_->submit(insert(1), Writer::Urgency::kDelayed);
  writer_->submit(insert(2));
  held->released.set_value();
  writer_->close();
  EXPECT_THAT(log_, ElementsAre("done 2", "done 1"));
}

TEST_F(WriterTest, AFullDiskFailsOnlyWhatFindsNoRoom) {
  const auto held = hold();
  writer_->submit({.apply = [this]() -> Result<Writer::AfterCommit> {
                     if (auto set = database_->execute("PRAGMA max_page_count=10"); !set) return fail(set.error());
                     return Writer::AfterCommit([] {});
                   },
                   .failed = [](const Error&) {}});
  writer_->submit(insert(1));
  writer_->submit(insert(2, std::string(100'000, 'x')));
  writer_->submit(insert(3));
  held->released.set_value();
  writer_->close();
  EXPECT_THAT(log_, ElementsAre("done 1", "failed 2 busy", "done 3"));
  EXPECT_EQ(rows(), "1 3");
}

TEST(DatabaseTest, OnceArmedADamagedFileEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const TempDir dir;
  const std::string path = dir.path() + "/db";
  {
    auto database = Database::open(path, Database::Access::kWriter).value();
    ASSERT_TRUE(database->execute("CREATE TABLE t (text TEXT)"));
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(database->execute("INSERT INTO t VALUES (hex(randomblob(500)))"));
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(20 * 4096, 'x');
  file.close();

  auto database = Database::open(path, Database::Access::kWriter).value();
  const auto read = database->query_text("SELECT sum(length(text)) FROM t");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().kind, ErrorKind::kEngine);
  database->make_io_errors_fatal();
  const auto die = [&] {
    std::filesystem::remove_all(dir.path());  // that of the process that dies, which can do so no later
    (void)database->query_text("SELECT sum(length(text)) FROM t");
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace kcoral::store
