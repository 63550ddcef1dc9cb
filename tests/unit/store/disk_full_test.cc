// A disk that fills up, played by a small tmpfs in a mount namespace of the test's own.
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;
using testing::HasSubstr;

/// A mount namespace of our own, made once: later there are threads that would stay behind in the old one.
bool enter_mount_namespace() {
  static const bool entered = ::unshare(CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) == 0 &&
                              ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return entered;
}

class DiskFullTest : public StoreFixture {
 protected:
  void SetUp() override {
    if (!enter_mount_namespace() || ::mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=96m") != 0) {
      GTEST_SKIP() << "mounting is not permitted here: " << std::strerror(errno);
    }
    StoreFixture::SetUp();
  }
  void TearDown() override {
    store_.reset();
    ::umount(dir_.path().c_str());
  }

  /// Leaves `bytes` free.
  void fill_all_but(uint64_t bytes) {
    struct statvfs status {};
    ASSERT_EQ(::statvfs(dir_.path().c_str(), &status), 0);
    const uint64_t free_bytes = status.f_bavail * status.f_frsize;
    ASSERT_GT(free_bytes, bytes);
    std::ofstream(dir_.path() + "/ballast") << std::string(free_bytes - bytes, 'b');
  }
  void empty() { std::filesystem::remove(dir_.path() + "/ballast"); }
  /// RocksDB looks for room every few seconds, and tells nobody.
  void admitted_once_there_is_room(const Submission& sent) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (auto again = admit(sent); !again; again = admit(sent)) {
      ASSERT_EQ(again.error().kind, ErrorKind::kBusy);
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
};

TEST_F(DiskFullTest, WhatFindsNoRoomFailsAndTheRestGoesOn) {
  const Uuid waiting = admitted(submission("small"));
  const Uuid running = admitted(submission("runs"));
  ASSERT_EQ(claim()->fence.request_id, waiting);
  const Fence fence{waiting, 1};
  const Fence other = claim()->fence;
  ASSERT_EQ(other.request_id, running);

  fill_all_but(2 * limits::kMiB);
  const auto refused = admit(submission_with({staged(std::string(3 * limits::kMiB, 'x'))}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kBusy) << refused.error().message;
  EXPECT_THAT(refused.error().message, HasSubstr("no space"));

  const auto without_content = admit(submission("no blobs"));
  ASSERT_FALSE(without_content) << "its answer would find no room";
  EXPECT_EQ(without_content.error().kind, ErrorKind::kBusy);

  // An answer without room becomes a small one that says so, or the request stays as it is and its owner is told.
  const Status ended = finish(fence, completion(answer("{}", {std::string(8 * limits::kMiB, 'y')})));
  if (ended) {
    EXPECT_EQ(state_of(waiting), State::kFailed);
    EXPECT_THAT(watch(waiting).value()->document, HasSubstr("could not be stored"));
  } else {
    EXPECT_EQ(ended.error().kind, ErrorKind::kBusy);
    EXPECT_EQ(state_of(waiting), State::kAssigned);
  }

  empty();
  const StagedBlob later = staged(std::string(8 * limits::kMiB, 'z'));
  admitted_once_there_is_room(submission_with({later}));
  ASSERT_TRUE(finish(other, completion(answer(R"({"fine":1})", {std::string(8 * limits::kMiB, 'w')}))));
  const std::string body = body_of(*watch(running).value());
  reopen();
  EXPECT_TRUE(body_of(*watch(running).value()) == body);
  EXPECT_TRUE(schema::is_terminal(state_of(waiting)));
  expect_sound_audit(audit(waiting));
  EXPECT_EQ(claim()->blobs[0].content->size_bytes(), 8 * limits::kMiB);
  EXPECT_TRUE(raw_content().nameless().empty());
}

/// It is not written through the log, so that the log is as good as before.
TEST_F(DiskFullTest, LargeContentThatFindsNoRoomIsInNobodysWay) {
  const StagedBlob large = staged(std::string(limits::kTableFileBytesMin, 'x'));
  fill_all_but(limits::kTableFileBytesMin / 2);
  const auto free_bytes = std::filesystem::space(dir_.path()).available;
  for (int i = 0; i < 3; ++i) {
    const auto refused = admit(submission_with({large}));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kBusy) << refused.error().message;
    EXPECT_THAT(refused.error().message, HasSubstr("no space"));
    EXPECT_TRUE(std::filesystem::is_empty(content_dir_ + "/incoming"));
    EXPECT_GT(std::filesystem::space(dir_.path()).available, free_bytes - limits::kMiB);
    admitted(submission_with({staged(fmt::format("small {}", i))}));
  }
  empty();
  const Uuid id = admitted(submission_with({large}));
  reopen();
  EXPECT_EQ(state_of(id), State::kQueued);
  EXPECT_TRUE(raw_content().nameless().empty());
}

/// While the first two are written, and after them.
TEST_F(DiskFullTest, WhatFitsIsKeptBesideWhatDoesNot) {
  store_.reset();
  const std::string path = dir_.path() + "/content";
  auto content = Content::open(path).value();
  ASSERT_TRUE(content->put_blob(Sha256::of("first"), "first"));  // RocksDB takes much room for its log beforehand
  fill_all_but(2 * limits::kTableFileBytesMin + limits::kTableFileBytesMin / 2);
  std::atomic<int> kept = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 4; ++i) {
        std::string bytes(limits::kTableFileBytesMin, static_cast<char>('a' + thread));
        bytes[0] = static_cast<char>('0' + i);
        const Status stored = content->put_blob(Sha256::of(bytes), bytes);
        EXPECT_TRUE(stored || stored.error().kind == ErrorKind::kBusy) << stored.error().message;
        if (!stored || !content->sync()) continue;
        ++kept;
        EXPECT_TRUE(content->load_blob(Sha256::of(bytes)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kept, 2);
  empty();
  content.reset();
  content = Content::open(path).value();
  ASSERT_TRUE(content->sweep());
  content.reset();
  EXPECT_TRUE(RawContent(path).nameless().empty());
}

/// What RocksDB could not append to must not be written or synced again, be it its write-ahead log or the file in which
/// it says so: its own assertions end the process.
TEST_F(DiskFullTest, ASyncBesideAWriteThatFindsNoRoomFailsLikeIt) {
  store_.reset();
  const std::string path = dir_.path() + "/content";
  auto content = Content::open(path).value();
  for (int round = 0; round < 2; ++round) {
    fill_all_but(6 * limits::kMiB);
    std::atomic<bool> is_full = false;
    std::thread syncing([&] {
      while (!is_full) (void)content->sync();
      // Once it is known to have failed, too.
      for (int i = 0; i < 2000; ++i) {
        const Status synced = content->sync();
        ASSERT_FALSE(synced);
        EXPECT_EQ(synced.error().kind, ErrorKind::kBusy);
      }
    });
    Status stored;
    for (int i = 0; stored && i < 100; ++i) {
      const std::string blob(limits::kMiB - 1, static_cast<char>('a' + i % 26));
      stored = content->put_blob(Sha256::of(blob + std::to_string(round)), blob);
    }
    is_full = true;
    syncing.join();
    ASSERT_FALSE(stored);
    EXPECT_EQ(stored.error().kind, ErrorKind::kBusy);
    empty();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!content->sync()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const std::string blob = std::to_string(round);
    ASSERT_TRUE(content->put_blob(Sha256::of(blob), blob));
    ASSERT_TRUE(content->sync());
    content.reset();
    content = Content::open(path).value();
    EXPECT_TRUE(content->load_blob(Sha256::of(blob)));
  }
}

/// Nothing has been written since the database was opened, so that RocksDB has nothing of which to rid itself: its own
/// recovery would go on with the log to which it could not append.
TEST_F(DiskFullTest, TheFirstWriteOfADatabaseMayFindNoRoom) {
  store_.reset();
  const std::string path = dir_.path() + "/content";
  auto content = Content::open(path).value();
  fill_all_but(64 * limits::kKiB);
  const std::string large(limits::kMiB - 1, 'l');
  const Status refused = content->put_blob(Sha256::of(large), large);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kBusy);
  EXPECT_FALSE(content->put_blob(Sha256::of("small"), "small")) << "what was refused before may lie in its way";
  empty();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!content->put_blob(Sha256::of(large), large)) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ASSERT_TRUE(content->sync());
  content.reset();
  EXPECT_TRUE(Content::open(path).value()->load_blob(Sha256::of(large)));
}

TEST_F(DiskFullTest, AFullDatabaseRefusesAndRecovers) {
  fill_all_but(256 * limits::kKiB);
  std::vector<Uuid> accepted;
  for (int i = 0; i < 200; ++i) {
    // Short of the length from which it is compressed.
    Submission sent = submission(std::string(15 * limits::kKiB, static_cast<char>('a' + i % 26)));
    const Uuid id = sent.request_id;
    const auto admission = admit(std::move(sent));
    if (!admission) {
      EXPECT_EQ(admission.error().kind, ErrorKind::kBusy) << admission.error().message;
      break;
    }
    accepted.push_back(id);
  }
  EXPECT_LT(accepted.size(), 200u) << "the disk did not fill up";
  for (const Uuid& id : accepted) EXPECT_TRUE(status(id));
  EXPECT_EQ(store_->counts().queued, accepted.size());
  empty();
  const Submission last = submission();
  admitted_once_there_is_room(last);
  accepted.push_back(last.request_id);
  reopen();
  for (const Uuid& id : accepted) EXPECT_EQ(state_of(id), State::kQueued);
  for (const Uuid& id : accepted) expect_sound_audit(audit(id));
}

}  // namespace
}  // namespace kcoral::store
