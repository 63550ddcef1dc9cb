// RocksDB as the content uses it: its families, its options, its errors in our words, and what is on disk already.
//
// It promises: a write is applied whole or not at all; a full disk makes calls fail with kBusy until there is room
// again, and never ends the process; a disk that fails to sync does.
//
// Thread-safe.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "store/content.h"

namespace kcoral::store {

enum FamilyIndex : size_t { kDefault, kBlobs, kArtifacts, kChunks, kAudit, kFamilyCount };

inline constexpr std::array<const char*, kFamilyCount> kFamilyNames = {"default", "blobs", "artifacts", "chunks",
                                                                       "audit"};

inline std::string_view view(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }
inline rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }

/// `what` was being done when RocksDB failed.
tl::unexpected<Error> failure(const rocksdb::Status& status, std::string_view what);

/// What RocksDB has to say goes into the server's log. A file of its own would lie on the disk that may be full, and
/// the library asserts that it can write there.
std::shared_ptr<rocksdb::Logger> server_log();

class ContentEngine {
 public:
  static Result<std::unique_ptr<ContentEngine>> open(const std::string& directory);
  ~ContentEngine();
  ContentEngine(const ContentEngine&) = delete;
  ContentEngine& operator=(const ContentEngine&) = delete;

  rocksdb::ColumnFamilyHandle* family(FamilyIndex index) const { return families_[index]; }
  rocksdb::Options options(FamilyIndex index) const { return db_->GetOptions(family(index)); }
  /// The highest id of all that has chunks or a mark; 0 if there is none.
  Result<ContentId> last_id() const;

  Status write(rocksdb::WriteBatch& batch, std::string_view what);
  Result<std::optional<std::string>> get(FamilyIndex index, std::string_view key, std::string_view what) const;
  std::unique_ptr<rocksdb::Iterator> iterate(FamilyIndex index) const;
  /// Hands the chunks of `id` to `sink`; kNotFound when they are not what was stored.
  Status read(ContentId id, uint64_t size_bytes, const std::function<Status(std::string_view)>& sink) const;

  /// Makes durable what was written before the call, and says how many writes that were. A disk that fails to sync ends
  /// the process.
  Result<uint64_t> sync();
  /// How many writes have ended.
  uint64_t ended() const { return ended_; }
  /// True if every write that has begun had also ended before the last sync.
  bool is_synced() const { return synced_ == begun_; }
  bool is_out_of_space() const { return out_of_space_; }

  /// Where a table file is made that will be ingested. What is there when the database is opened is removed.
  std::string incoming_path(ContentId id) const;
  /// Moves a table file of chunks into the database: afterwards it is there, durably, and nowhere else. Other writes
  /// wait while the database says so in its manifest.
  Status ingest(const std::string& path);

  /// Where a checkpoint is made. What is there when the database is opened is removed.
  std::string checkpoint_path() const;
  /// Makes a directory with all that is written, of what content_checkpoint.h says. Nothing is flushed for it, so that
  /// a disk without room fails the checkpoint and nobody else. Requires: nothing of that name is there.
  Status checkpoint(const std::string& path);

  /// Removes the chunks of `id`, and its mark. The space of a table file of its own is free at once, unless RocksDB is
  /// about to compact it.
  Status forget(ContentId id);
  /// The same of content with a name, which `batch` removes: that first, so that no name ever outlives its chunks.
  /// If it fails after that, what is left is remembered for `forget_rest`, and by its mark for the next start.
  Status forget_named(rocksdb::WriteBatch& batch, ContentId id, std::string_view what);
  /// Ends what every `forget_named` that failed has left.
  Status forget_rest();

 private:
  class DefaultMemtables;

  explicit ContentEngine(std::string directory);
  rocksdb::Status append(rocksdb::WriteBatch& batch, const rocksdb::WriteOptions& options);
  Status forget_nameless(ContentId id);

  const std::string directory_;
  std::shared_ptr<DefaultMemtables> memtables_;
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
  std::atomic<uint64_t> memtable_with_placeholder_{0};
  Mutex rest_mutex_;
  std::set<ContentId> rest_ KCORAL_GUARDED_BY(rest_mutex_);  // has lost its name, and has chunks yet

  // Writes that have begun, writes that have ended, and how many had ended before the last successful sync.
  std::atomic<uint64_t> begun_{0};
  std::atomic<uint64_t> ended_{0};
  std::atomic<uint64_t> synced_{0};
  std::atomic<bool> out_of_space_{false};
};

}  // namespace kcoral::store
