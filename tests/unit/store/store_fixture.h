// What the store's tests share: a data directory of their own, waiting with a deadline, and short ways to say "submit",
// "claim" and "finish".
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/durable_store.h"
#include "store/store.h"
#include "tests/unit/store/raw_content.h"
#include "tests/unit/store/test_pool.h"

namespace kcoral::store {

constexpr auto kPatience = std::chrono::seconds(60);  // a wait that is longer has failed

/// In memory where there is room, so that no test waits for a disk: what they kill is a process, not a machine. TMPDIR
/// says otherwise.
inline std::filesystem::path temp_parent() {
  constexpr const char* kMemory = "/dev/shm";
  struct statvfs status {};
  const bool has_room = ::access(kMemory, W_OK) == 0 && ::statvfs(kMemory, &status) == 0 &&
                        status.f_bavail * status.f_frsize >= 1024 * limits::kMiB;
  if (::getenv("TMPDIR") == nullptr && has_room) return kMemory;
  return std::filesystem::temp_directory_path();
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = (temp_parent() / "kcoral-store-XXXXXX").string();
    KCORAL_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// What a callback brings, waited for.
template <typename T>
class Slot {
 public:
  std::function<void(T)> setter() {
    return [promise = promise_](T value) { promise->set_value(std::move(value)); };
  }
  T get() {
    KCORAL_CHECK(future_.wait_for(kPatience) == std::future_status::ready);
    return future_.get();
  }
  bool is_ready() const { return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

 private:
  std::shared_ptr<std::promise<T>> promise_ = std::make_shared<std::promise<T>>();
  std::future<T> future_ = promise_->get_future();
};

inline Result<RequestStatus> status_in(Store& store, const Uuid& id) {
  Slot<Result<RequestStatus>> slot;
  store.status(id, slot.setter());
  return slot.get();
}

inline Result<std::vector<std::string>> audit_in(Store& store, const Uuid& id) {
  Slot<Result<std::vector<std::string>>> slot;
  store.audit(id, slot.setter());
  return slot.get();
}

inline StagedBlob staged(std::string_view content) {
  return {Sha256::of(content), SealedMemory::copy_of(content).value()};
}

inline Submission submission(std::string text = R"({"instructions":[]})") {
  Submission made;
  made.request_id = Uuid::random();
  made.client = "tester";
  made.peer = "127.0.0.1";
  made.program_sha256 = Sha256::of(text);
  made.program_text = std::move(text);
  return made;
}

inline Submission submission_with(const std::vector<StagedBlob>& blobs) {
  Submission made = submission();
  made.staged = blobs;
  for (const StagedBlob& blob : blobs) made.program.blobs.push_back(blob.sha256);
  return made;
}

inline schema::Part part_of(std::string_view content) {
  schema::Part part;
  part.extent.memory = SealedMemory::copy_of(content).value();
  part.extent.length = content.size();
  part.sha256 = Sha256::of(content);
  return part;
}

inline std::shared_ptr<const schema::Answer> answer(std::string document,
                                                    const std::vector<std::string>& contents = {}) {
  std::vector<schema::Part> parts;
  for (const std::string& content : contents) parts.push_back(part_of(content));
  return std::make_shared<const schema::Answer>(schema::make_result_answer(std::move(document), std::move(parts)));
}

inline Completion completion(std::shared_ptr<const schema::Answer> with) {
  Completion made;
  made.state = schema::State::kCompleted;
  made.answer = std::move(with);
  made.reason = "every instruction ran";
  return made;
}

/// The bytes that a client would read.
inline std::string body_of(const schema::Answer& read) {
  std::string body;
  for (const schema::Answer::Segment& segment : read.body()) {
    if (const auto* extent = std::get_if<schema::Extent>(&segment)) {
      body += extent->memory->view().value().substr(extent->offset, extent->length);
    } else if (const auto* framing = std::get_if<std::string>(&segment)) {
      body += *framing;
    } else {
      body += std::get<std::string_view>(segment);
    }
  }
  return body;
}

/// The "event" members of audit records, in order.
inline std::vector<std::string> events_of(const std::vector<std::string>& records) {
  std::vector<std::string> events;
  for (const std::string& record : records) {
    constexpr std::string_view kKey = R"("event":")";
    const size_t begin = record.find(kKey) + kKey.size();
    events.push_back(record.substr(begin, record.find('"', begin) - begin));
  }
  return events;
}

/// Fails unless the records are numbered from 0 without gaps and their times do not run backwards.
inline void expect_sound_audit(const std::vector<std::string>& records) {
  std::string last_at;
  for (size_t seq = 0; seq < records.size(); ++seq) {
    const std::string begin = fmt::format(R"({{"seq":{},"at":")", seq);
    ASSERT_EQ(records[seq].substr(0, begin.size()), begin);
    const std::string at = records[seq].substr(begin.size(), std::string_view("2026-11-29T19:24:56.012345Z").size());
    EXPECT_LE(last_at, at);
    last_at = at;
  }
}

class StoreFixture : public testing::Test {
 protected:
  void SetUp() override {
    open();
    ASSERT_TRUE(store_->recover());
  }

  void open(uint64_t blob_cache_bytes = limits::kBlobCacheBytesDefault) {
    config_.data_dir = data_dir_;
    config_.blob_cache_bytes = blob_cache_bytes;
    store_ = DurableStore::open(config_, clock_).value();
  }
  /// As a restart of the server does.
  void reopen(uint64_t blob_cache_bytes = limits::kBlobCacheBytesDefault) {
    store_.reset();
    open(blob_cache_bytes);
    ASSERT_TRUE(store_->recover());
  }

  /// What a closed store left on disk. Requires: the store is opened again after it has gone.
  RawContent raw_content() {
    store_.reset();
    return RawContent(content_dir_);
  }

  Result<Admission> admit(Submission what) {
    Slot<Result<Admission>> slot;
    store_->admit(std::move(what), slot.setter());
    return slot.get();
  }
  Uuid admitted(Submission what) {
    const Uuid id = what.request_id;
    const auto admission = admit(std::move(what));
    EXPECT_TRUE(admission) << admission.error().message;
    EXPECT_EQ(admission->kind, Admission::Kind::kAdmitted);
    return id;
  }
  Result<std::optional<Claim>> try_claim(const ExecutorRef& executor = {"executor-0", 1000}) {
    return pool_.claim(*store_, executor);
  }
  std::optional<Claim> claim(const ExecutorRef& executor = {"executor-0", 1000}) {
    auto claimed = try_claim(executor);
    EXPECT_TRUE(claimed) << claimed.error().message;
    return *claimed;
  }
  Status finish(const Fence& fence, Completion with) {
    Slot<Status> slot;
    store_->finish(fence, std::move(with), slot.setter());
    return slot.get();
  }
  Status abandon(const Fence& fence, const std::string& reason) {
    Slot<Status> slot;
    store_->abandon(fence, reason, slot.setter());
    return slot.get();
  }
  Result<Store::AnswerPtr> watch(const Uuid& id) {
    Slot<Result<Store::AnswerPtr>> slot;
    store_->watch(id, slot.setter());
    return slot.get();
  }
  Result<RequestStatus> status(const Uuid& id) { return status_in(*store_, id); }
  schema::State state_of(const Uuid& id) { return status(id).value().state; }
  std::vector<std::string> audit(const Uuid& id) { return audit_in(*store_, id).value(); }
  Result<schema::State> cancel(const Uuid& id, CancelBy by = CancelBy::kClient) {
    Slot<Result<schema::State>> slot;
    store_->cancel(id, by, slot.setter());
    return slot.get();
  }
  Result<OutputPiece> output(const Uuid& id, OutputStream stream = OutputStream::kStdout, uint64_t offset = 0) {
    Slot<Result<OutputPiece>> slot;
    store_->output(id, stream, offset, slot.setter());
    return slot.get();
  }
  HistoryPage history(const HistoryQuery& query = {}) {
    Slot<Result<HistoryPage>> slot;
    store_->history(query, slot.setter());
    return slot.get().value();
  }

  TempDir dir_;
  const std::string data_dir_ = dir_.path() + "/data";
  const std::string content_dir_ = data_dir_ + "/content";
  FakeClock clock_;
  StoreConfig config_;
  TestPool pool_;
  std::unique_ptr<DurableStore> store_;
};

}  // namespace kcoral::store
