// Backups of a store that goes on, and what starts from them.
#include "store/backup.h"

#include <atomic>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "store/content_engine.h"
#include "store/new_directory.h"
#include "store/queue_database.h"
#include "store/sqlite_snapshot.h"
#include "store/step_gate.h"
#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

namespace fs = std::filesystem;
using schema::State;
using testing::HasSubstr;
using testing::IsEmpty;

const BackupProgress kGoOn = [](uint64_t, uint64_t) { return true; };

/// What a store that is closed says in one number.
uint64_t count(const std::string& data_dir, const std::string& sql) {
  const auto database = open_queue_database(data_dir + "/queue.sqlite3").value();
  return std::stoull(database->query_text(sql).value());
}

/// How many answers lie in the content of a store that is closed.
size_t artifacts_in(const std::string& data_dir) {
  const auto engine = ContentEngine::open(data_dir + "/content").value();
  const auto names = engine->iterate(kArtifacts);
  size_t found = 0;
  for (names->SeekToFirst(); names->Valid(); names->Next()) ++found;
  return found;
}

class BackupTest : public StoreFixture {
 protected:
  /// A store that starts from a backup, as a server does.
  std::unique_ptr<DurableStore> started_from(const std::string& directory) {
    StoreConfig config;
    config.data_dir = directory;
    auto store = DurableStore::open(config, clock_).value();
    EXPECT_TRUE(store->recover());
    return store;
  }
  Result<BackupSummary> back_up(const BackupProgress& progress = kGoOn) { return store_->back_up(copy_dir_, progress); }
  /// The error of one that is to fail, after which nothing is there but what was.
  std::string failed(const std::string& directory, const BackupProgress& progress = kGoOn) {
    const auto made = store_->back_up(directory, progress);
    EXPECT_FALSE(made);
    EXPECT_FALSE(fs::exists(content_dir_ + "/checkpoint"));
    return made ? "" : made.error().message;
  }
  Uuid ended(const std::string& part) {
    const Uuid id = admitted(submission());
    EXPECT_TRUE(finish(claim()->fence, completion(answer(fmt::format(R"({{"of":"{}"}})", id.str()), {part}))));
    return id;
  }
  static Result<Store::AnswerPtr> watch_in(Store& store, const Uuid& id) {
    Slot<Result<Store::AnswerPtr>> slot;
    store.watch(id, slot.setter());
    return slot.get();
  }

  static size_t count_of(Store& store, State state) {
    HistoryQuery query;
    query.count_max = 100'000;
    query.state = state;
    Slot<Result<HistoryPage>> slot;
    store.history(query, slot.setter());
    return slot.get()->requests.size();
  }

  const std::string copy_dir_ = dir_.path() + "/copy";
};

TEST_F(BackupTest, WhatStartsFromItGoesOnAsAfterAKill) {
  const Uuid small = ended("few");
  const Uuid large = ended(std::string(100 * limits::kKiB, 'l'));
  const Uuid table = ended(std::string(limits::kTableFileBytesMin, 't'));
  Submission again = submission();
  again.max_attempts = 2;
  const Uuid requeued = admitted(std::move(again));
  const Fence running = claim()->fence;
  const Uuid interrupted = admitted(submission());
  ASSERT_EQ(claim()->fence.request_id, interrupted);
  const StagedBlob blob = staged(std::string(limits::kMiB + 7, 'b'));
  const Uuid queued = admitted(submission_with({blob}));

  uint64_t told_bytes = 0;
  const auto made = back_up([&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    EXPECT_LE(told_bytes, done) << "it never goes back";
    told_bytes = done;
    return true;
  });
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->requests, 6u);
  EXPECT_EQ(told_bytes, made->bytes);
  EXPECT_GE(made->bytes_shared, limits::kTableFileBytesMin) << "its table file is a link";
  EXPECT_FALSE(fs::exists(content_dir_ + "/checkpoint"));
  EXPECT_FALSE(fs::exists(copy_dir_ + ".incomplete"));
  EXPECT_EQ(fs::status(copy_dir_).permissions(), fs::perms::owner_all);

  // The store goes on, and what becomes of it is not the copy's concern.
  ASSERT_TRUE(finish(running, completion(answer("{}", {std::string(50 * limits::kKiB, 'x')}))));
  const Uuid later = admitted(submission());

  TestPool pool;
  const auto copy = started_from(copy_dir_);
  for (const Uuid& id : {small, large, table}) {
    EXPECT_TRUE(body_of(*watch_in(*copy, id).value()) == body_of(*watch(id).value()));
    EXPECT_EQ(audit_in(*copy, id).value(), audit(id));
  }
  EXPECT_EQ(status_in(*copy, requeued)->state, State::kQueued);
  EXPECT_EQ(events_of(audit_in(*copy, requeued).value()).back(), "requeued");
  expect_sound_audit(audit_in(*copy, requeued).value());
  EXPECT_EQ(status_in(*copy, interrupted)->state, State::kInterrupted);
  EXPECT_EQ(status_in(*copy, later).error().kind, ErrorKind::kNotFound);

  std::set<Uuid> claimed;
  for (int i = 0; i < 2; ++i) {
    const auto given = pool.claim(*copy, {fmt::format("executor-{}", i), 1}).value();
    ASSERT_TRUE(given);
    claimed.insert(given->fence.request_id);
    if (given->fence.request_id != queued) continue;
    ASSERT_EQ(given->blobs.size(), 1u);
    EXPECT_EQ(given->blobs[0].content->view().value(), std::string(limits::kMiB + 7, 'b'));
  }
  EXPECT_EQ(claimed, (std::set{queued, requeued}));
}

TEST_F(BackupTest, UnderLoadEveryRowThatItHasFindsWhatItRefersTo) {
  constexpr int kClients = 4;
  constexpr int kBackups = 4;
  config_.retention.artifact_bytes_max = 6 * limits::kMiB;
  reopen();
  std::atomic<bool> is_over{false};
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < kClients; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 draw(static_cast<unsigned>(number));
      while (!is_over) {
        const std::string content = fmt::format("{}/{}/{}", number, draw(), std::string(draw() % 50'000, 'c'));
        Slot<Result<Admission>> admission;
        store_->admit(submission_with({staged(content)}), admission.setter());
        ASSERT_TRUE(admission.get());
        auto claimed = pool_.claim(*store_, {fmt::format("executor-{}", number), 1});
        ASSERT_TRUE(claimed);
        if (!*claimed || draw() % 8 == 0) continue;  // it runs on
        const Fence fence = (*claimed)->fence;
        const std::string part(draw() % 16 == 0 ? limits::kTableFileBytesMin : draw() % 100'000, 'p');
        Slot<Status> done;
        store_->finish(fence, completion(answer(fmt::format(R"({{"of":"{}"}})", fence.request_id.str()), {part})),
                       done.setter());
        ASSERT_TRUE(done.get());
        ++finished;
      }
    });
  }
  threads.emplace_back([&] {
    while (!is_over) {
      ASSERT_TRUE(store_->prune());
      std::this_thread::yield();
    }
  });
  const auto directory_of = [this](int number) { return fmt::format("{}-{}", copy_dir_, number); };
  for (int number = 0; number < kBackups; ++number) {
    const int before = finished;
    while (finished < before + 20) std::this_thread::yield();
    const auto made = store_->back_up(directory_of(number), kGoOn);
    EXPECT_TRUE(made) << made.error().message;
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
  store_.reset();

  for (int number = 0; number < kBackups; ++number) {
    const std::string directory = directory_of(number);
    SCOPED_TRACE(directory);
    const uint64_t pruned = count(directory, "SELECT count(*) FROM requests WHERE state > 2 AND answer_id IS NULL");
    TestPool pool;
    auto copy = started_from(directory);
    uint64_t gone = 0;
    HistoryQuery query;
    query.count_max = 100'000;
    Slot<Result<HistoryPage>> slot;
    copy->history(query, slot.setter());
    const HistoryPage all = slot.get().value();
    EXPECT_GE(all.requests.size(), 20u);
    for (const RequestStatus& request : all.requests) {
      const auto audit = audit_in(*copy, request.request_id).value();
      expect_sound_audit(audit);
      const auto events = events_of(audit);
      const bool has_ended = schema::is_terminal(request.state);
      EXPECT_EQ(std::count(events.begin(), events.end(), "finished"), has_ended ? 1 : 0) << audit.back();
      EXPECT_EQ(events.back(), has_ended ? "finished" : "queued") << audit.back();
      if (!has_ended) continue;
      const auto read = watch_in(*copy, request.request_id);
      if (read) {
        EXPECT_THAT((*read)->document, HasSubstr(request.request_id.str()));
      } else {
        EXPECT_EQ(read.error().kind, ErrorKind::kGone) << read.error().message;
        ++gone;
      }
    }
    EXPECT_EQ(gone, pruned) << "what is gone was gone before";
    while (copy->counts().queued > 0) {
      const auto given = pool.claim(*copy, {"executor-0", 1});
      ASSERT_TRUE(given) << given.error().message;
      EXPECT_TRUE(!*given || (*given)->blobs.size() == 1u);
    }
    EXPECT_EQ(count_of(*copy, State::kFailed), 0u) << "every blob was there";
    ASSERT_TRUE(copy->prune());
    copy.reset();
    EXPECT_EQ(artifacts_in(directory), count(directory, "SELECT count(*) FROM requests WHERE answer_id > 0"));
    EXPECT_THAT(RawContent(directory + "/content").nameless(), IsEmpty());
  }
}

TEST_F(BackupTest, AnAnswerThatIsInNoRowOfItGoes) {
  const Uuid known = ended(std::string(100 * limits::kKiB, 'k'));
  store_.reset();
  const std::string part(100 * limits::kKiB, 'u');
  {
    // As if it had been stored, and its request admitted and ended, between the rows and the content.
    const auto content = Content::open(content_dir_).value();
    ASSERT_TRUE(store_answer(*content, Uuid::random(), *answer("{}", {part})));
    const auto made = store::back_up({data_dir_, data_dir_ + "/queue.sqlite3", *content}, copy_dir_, kGoOn);
    ASSERT_TRUE(made) << made.error().message;
  }
  EXPECT_EQ(artifacts_in(copy_dir_), 2u);
  EXPECT_EQ(count(copy_dir_, "SELECT count(*) FROM doomed"), 1u);
  auto copy = started_from(copy_dir_);
  ASSERT_TRUE(copy->prune());
  EXPECT_TRUE(watch_in(*copy, known));
  copy.reset();
  EXPECT_EQ(artifacts_in(copy_dir_), 1u);
  EXPECT_EQ(artifacts_in(data_dir_), 2u) << "the original has it";
  EXPECT_THAT(RawContent(copy_dir_ + "/content").nameless(), IsEmpty());
}

TEST_F(BackupTest, WhatIsPrunedInOneIsThereInTheOther) {
  const Uuid id = ended(std::string(limits::kTableFileBytesMin, 't'));
  ASSERT_TRUE(back_up());
  auto copy = started_from(copy_dir_);
  config_.retention.artifact_bytes_max = 1;
  reopen();
  ASSERT_TRUE(store_->prune());
  EXPECT_EQ(watch(id).error().kind, ErrorKind::kGone);
  EXPECT_TRUE(watch_in(*copy, id));
}

TEST_F(BackupTest, WhoIsGivenUpLeavesNothing) {
  ended(std::string(20 * limits::kKiB, 'a'));
  ended(std::string(limits::kTableFileBytesMin, 't'));
  // At each word that it says, one after another.
  int words = 0;
  for (;; ++words) {
    int left = words;
    const auto made = back_up([&left](uint64_t, uint64_t) { return left-- > 0; });
    if (made) break;
    EXPECT_EQ(made.error().kind, ErrorKind::kCancelled) << made.error().message;
    EXPECT_FALSE(fs::exists(copy_dir_));
    EXPECT_FALSE(fs::exists(copy_dir_ + ".incomplete"));
    EXPECT_FALSE(fs::exists(content_dir_ + "/checkpoint"));
  }
  EXPECT_GE(words, 5);
  EXPECT_TRUE(started_from(copy_dir_));
}

TEST_F(BackupTest, APlaceThatIsTakenOrCannotBeIsSaidSo) {
  fs::create_directory(copy_dir_);
  std::ofstream(copy_dir_ + "/theirs") << "theirs";
  EXPECT_THAT(failed(copy_dir_), HasSubstr("is not empty"));
  EXPECT_TRUE(fs::exists(copy_dir_ + "/theirs"));
  EXPECT_THAT(failed(copy_dir_ + "/theirs"), HasSubstr("is no directory"));
  EXPECT_THAT(failed(copy_dir_ + "/theirs/below"), HasSubstr("theirs is no directory"));
  EXPECT_THAT(failed(dir_.path() + "/none/below"), HasSubstr("does not exist"));
  EXPECT_THAT(failed("copy"), HasSubstr("absolute"));
  EXPECT_THAT(failed("/"), HasSubstr("name of its own"));
  EXPECT_THAT(failed("/proc"), HasSubstr("mount point"));
  EXPECT_THAT(failed(data_dir_ + "/copy"), HasSubstr("outside"));
  EXPECT_THAT(failed(content_dir_ + "/copy"), HasSubstr("outside"));
  fs::create_directory_symlink(data_dir_, dir_.path() + "/link");
  EXPECT_THAT(failed(dir_.path() + "/link/copy"), HasSubstr("outside"));
  fs::remove(copy_dir_ + "/theirs");
  EXPECT_TRUE(back_up()) << "an empty directory is as good as none";
}

TEST_F(BackupTest, WhatAKilledOneLeftIsRemovedAndWhatIsSomebodyElsesIsNot) {
  const std::string left = copy_dir_ + ".incomplete";
  fs::create_directories(left + "/content");
  std::ofstream(left + "/queue.sqlite3.incomplete") << "half of it";
  EXPECT_TRUE(remove_incomplete_backup(copy_dir_));
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(remove_incomplete_backup(copy_dir_)) << "there is nothing to do";

  fs::create_directories(left + "/content");
  EXPECT_TRUE(back_up());
  EXPECT_FALSE(fs::exists(left));
  fs::remove_all(copy_dir_);

  fs::create_directories(left + "/holidays");
  EXPECT_FALSE(remove_incomplete_backup(copy_dir_));
  EXPECT_THAT(failed(copy_dir_), HasSubstr("in the way"));
  EXPECT_TRUE(fs::exists(left + "/holidays"));
  fs::remove_all(left);

  {
    const auto other = NewDirectory::create(copy_dir_, {}).value();
    EXPECT_FALSE(remove_incomplete_backup(copy_dir_)) << "somebody is at work on it";
    EXPECT_THAT(failed(copy_dir_), HasSubstr("in the way"));
    EXPECT_TRUE(fs::exists(other.path()));
  }
  EXPECT_TRUE(back_up());
}

TEST_F(BackupTest, NothingStartsFromHalfOfOne) {
  ended("few");
  const std::string seen = dir_.path() + "/seen";
  const auto made = back_up([&](uint64_t, uint64_t total) {
    if (total > 0 && !fs::exists(seen)) fs::copy(copy_dir_ + ".incomplete", seen, fs::copy_options::recursive);
    return true;
  });
  ASSERT_TRUE(made);
  StoreConfig config;
  config.data_dir = seen;
  const auto opened = DurableStore::open(config, clock_);
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().message, HasSubstr("is no kcoral data directory"));
}

TEST_F(BackupTest, ACheckpointThatAKilledServerLeftGoesAtTheNextStart) {
  store_.reset();
  for (const char* name : {"/checkpoint", "/checkpoint.tmp"}) {
    fs::create_directory(content_dir_ + name);
    std::ofstream(content_dir_ + name + "/000001.sst") << "x";
  }
  open();
  ASSERT_TRUE(store_->recover());
  EXPECT_FALSE(fs::exists(content_dir_ + "/checkpoint"));
  EXPECT_FALSE(fs::exists(content_dir_ + "/checkpoint.tmp"));
  EXPECT_TRUE(back_up());
}

TEST_F(BackupTest, RemovalsAndRecordsWaitWhileTheGateIsHeldAndGoOnAfterwards) {
  const std::string path = dir_.path() + "/gated";
  const auto content = Content::open(path).value();
  const Uuid id = Uuid::random();
  const std::string_view pieces[] = {"answer"};
  const ContentId artifact = content->put_artifact(id, "header", pieces).value();
  const StoredRecord records[] = {{id, 0, "{}"}};
  std::atomic<int> done{0};
  std::vector<std::thread> threads;
  {
    const StepGate::Hold hold(content->gate());
    threads.emplace_back([&] { done += content->drop_artifact(id, artifact).has_value(); });
    threads.emplace_back([&] { done += content->put_records(records).has_value(); });
    threads.emplace_back([&] { done += content->drop_records(Uuid::random()).has_value(); });
    EXPECT_TRUE(content->put_artifact(id, "another", pieces)) << "whoever stores does not wait";
    EXPECT_TRUE(content->artifact_header(id, artifact).value());
    EXPECT_TRUE(content->records(id)->empty());
    EXPECT_EQ(done, 0);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 3);
  EXPECT_FALSE(content->artifact_header(id, artifact).value());
  EXPECT_EQ(content->records(id)->size(), 1u);
}

TEST(StepGateTest, AHoldIsTakenAlsoWhileStepsFollowOneAnother) {
  StepGate gate;
  std::atomic<bool> is_over{false};
  std::atomic<bool> is_held{false};
  std::atomic<int> steps{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!is_over) {
        const StepGate::Step step(gate);
        EXPECT_FALSE(is_held);
        ++steps;
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    const int before = steps;
    {
      const StepGate::Hold hold(gate);
      is_held = true;
      std::this_thread::yield();
      is_held = false;
    }
    while (steps == before) std::this_thread::yield();
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(DatabaseSnapshotTest, ACopyHasWhatWasCommittedWhateverIsWrittenMeanwhile) {
  const TempDir dir;
  const std::string path = dir.path() + "/database";
  const auto writer = Database::open(path, Database::Access::kWriter).value();
  ASSERT_EQ(writer->query_text("PRAGMA journal_mode=WAL").value(), "wal");
  ASSERT_TRUE(writer->execute("CREATE TABLE t (n INTEGER PRIMARY KEY, filler BLOB)"));
  auto insert = writer->prepare("INSERT INTO t (filler) VALUES (zeroblob(4000))").value();
  ASSERT_TRUE(writer->execute("BEGIN"));
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(insert.execute());
  ASSERT_TRUE(writer->execute("COMMIT"));

  const auto snapshot = DatabaseSnapshot::take(path).value();
  int steps = 0;
  const auto copied = snapshot->copy_to(dir.path() + "/copy", [&](uint64_t done_bytes) -> Status {
    EXPECT_LE(done_bytes, snapshot->size_bytes());
    ++steps;
    EXPECT_TRUE(writer->execute("UPDATE t SET filler = zeroblob(3000)")) << "the writer waits for nothing";
    EXPECT_TRUE(insert.execute());
    return writer->checkpoint_if_due();
  });
  ASSERT_TRUE(copied) << copied.error().message;
  EXPECT_GT(steps, 10);
  EXPECT_EQ(fs::file_size(dir.path() + "/copy"), snapshot->size_bytes());
  EXPECT_FALSE(fs::exists(dir.path() + "/copy-wal"));
  const auto copy = Database::open(dir.path() + "/copy", Database::Access::kWriter).value();
  EXPECT_EQ(copy->query_text("SELECT count(*) FROM t WHERE length(filler) = 4000").value(), "2000");
  EXPECT_EQ(copy->query_text("SELECT count(*) FROM t").value(), "2000");
  EXPECT_EQ(copy->query_text("PRAGMA integrity_check").value(), "ok");
}

TEST(DatabaseSnapshotTest, TheLogThatGrewMeanwhileDoesNotStayAsLargeAsItWas) {
  constexpr uint64_t kKeptBytes = 64 * limits::kMiB;
  const TempDir dir;
  const std::string path = dir.path() + "/database";
  const auto writer = Database::open(path, Database::Access::kWriter).value();
  ASSERT_EQ(writer->query_text("PRAGMA journal_mode=WAL").value(), "wal");
  ASSERT_TRUE(writer->execute("CREATE TABLE t (n INTEGER PRIMARY KEY, filler BLOB)"));
  auto insert = writer->prepare("INSERT INTO t (filler) VALUES (zeroblob(?))").value();
  {
    const auto snapshot = DatabaseSnapshot::take(path).value();
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(insert.execute(16 * limits::kMiB));
      ASSERT_TRUE(writer->checkpoint_if_due());
    }
    EXPECT_GT(fs::file_size(path + "-wal"), kKeptBytes);
  }
  ASSERT_TRUE(writer->checkpoint_if_due());
  ASSERT_TRUE(insert.execute(1));
  EXPECT_LE(fs::file_size(path + "-wal"), kKeptBytes);
}

}  // namespace
}  // namespace kcoral::store
