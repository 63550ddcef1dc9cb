// Content by name in RocksDB: blobs, artifacts (the stored answers) and audit records. Only content*.cc know
// RocksDB.
//
// It promises: content is visible either whole or not at all; what was written before a successful `sync` survives the
// loss of power, in the order of writing; a blob that is read back has the digest it is named by, or is dropped and
// reported as not held.
//
// Thread-safe. All functions block on the disk.
//
// The format, in column families (numbers are big-endian, so that keys sort as they count):
//
//   blobs      digest[32]                   → version u8, content id u64, size u64
//   artifacts  request id[16] content id u64 → a header that its writer chose (answers.h)
//   chunks     content id u64, index u32    → at most 1 MiB of content; the last one may be shorter, or empty
//   audit      request id[16] seq u64       → one record, JSON
//   default    "writing" content id u64     → empty; the content of this id is being written
//
// Content ids count up, so that the chunks of one content lie side by side and the files of `chunks` hardly ever
// overlap: compaction moves them instead of rewriting them. That is also why names and chunks are not in one family.
//
// Small content goes through RocksDB's log and memtables. Large content (limits::kTableFileBytesMin) gets a table file
// of its own, made in the directory `incoming` and then moved into `chunks`, so that its bytes reach the disk once
// (content_transfer.h).
//
// Content of more than one chunk starts by marking its id as being written: in the batch of its first chunk, or, since
// a table file that is moved in is durable by itself, in a batch that is synced before. The batch that names the
// content removes the mark. After a crash the marks say what to sweep, however much is stored, and whatever is in
// `incoming` goes when the database is opened. Content that is removed loses its name first, which turns into a mark
// until the chunks are gone as well.
//
// A checkpoint (content_checkpoint.h) is what all of this is at one moment, in the directory `checkpoint`. It goes with
// whoever asked for it, and when the database is opened.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/memfd.h"
#include "base/mutex.h"
#include "base/sha256.h"
#include "base/uuid.h"
#include "store/step_gate.h"

namespace kcoral::store {

/// Names one content among all that were ever stored; never 0.
using ContentId = uint64_t;

/// One numbered audit record as it is stored.
struct StoredRecord {
  Uuid request_id;
  uint64_t seq = 0;
  std::string text;
};

class ContentCheckpoint;
class ContentEngine;

class Content {
 public:
  static Result<std::unique_ptr<Content>> open(const std::string& directory);
  ~Content();
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;

  // What is written is durable after the next successful `sync`; of what fails nothing remains. Errors of all
  // functions, unless they say otherwise: kBusy or kEnvironment when disk, memory or descriptors run short, else
  // kEngine.

  /// Does nothing if the blob is held already. Requires: `bytes` have this digest.
  Status put_blob(const Digest& digest, std::string_view bytes);
  Result<std::optional<uint64_t>> blob_bytes(const Digest& digest);
  /// kNotFound if it is not held, or was found damaged and is held no longer.
  Result<std::shared_ptr<const SealedMemory>> load_blob(const Digest& digest);

  /// Stores `pieces` one after another, beside whatever else is stored for the request.
  Result<ContentId> put_artifact(const Uuid& request_id, std::string_view header,
                                 std::span<const std::string_view> pieces);
  /// nullopt if there is none (any more).
  Result<std::optional<std::string>> artifact_header(const Uuid& request_id, ContentId id);
  /// Hands the content of an artifact to `sink` in order, in pieces of its own choice; an error of `sink` ends it.
  /// kEngine if it is not `size_bytes` long.
  Status read_artifact(ContentId id, uint64_t size_bytes, const std::function<Status(std::string_view)>& sink);
  /// Does nothing if there is none (any more). Also ends what drops that failed have left without a name.
  Status drop_artifact(const Uuid& request_id, ContentId id);
  /// All that is stored for a request: what a crash left of an answer that was never announced.
  Status drop_artifacts(const Uuid& request_id);

  Status put_records(std::span<const StoredRecord> records);
  Status drop_records(const Uuid& request_id);
  /// In the order of `seq`.
  Result<std::vector<StoredRecord>> records(const Uuid& request_id);

  /// Makes durable what was written before the call. A disk that fails to sync ends the process: what is durable is no
  /// longer known.
  Status sync();
  /// True if all that can be read now is durable already. Never while the disk is full.
  bool is_synced() const;
  /// The same of one blob that is held.
  bool is_synced(const Digest& blob) const;
  /// Whether the last word of the disk was that it has no room for the log, without which nothing is written. A `sync`
  /// asks it again. Large content that found no room says nothing about that.
  bool is_out_of_space() const;

  /// All that was written before the call; of what is written meanwhile, perhaps some.
  Result<std::unique_ptr<ContentCheckpoint>> checkpoint();
  /// While it is held, nothing is removed that somebody may still look for, and no audit record arrives: who waits for
  /// a removal or a copy of records waits on.
  StepGate& gate() { return gate_; }

  /// Removes what was half written when the process that wrote it ended. Requires: nothing is being written.
  Status sweep();

 private:
  struct BlobEntry {
    ContentId id;
    uint64_t size_bytes;
  };

  explicit Content(std::unique_ptr<ContentEngine> engine);
  Result<std::optional<BlobEntry>> blob_entry(const Digest& digest);
  void note_unsynced(const Digest& blob, std::optional<uint64_t> ended);
  Status drop_damaged_blob(const Digest& digest, ContentId id, std::string_view why);

  std::unique_ptr<ContentEngine> engine_;
  std::atomic<ContentId> next_id_{1};
  StepGate gate_;
  Mutex naming_mutex_;  // held while a blob gets or loses its name, so that it has one content at most
  mutable Mutex unsynced_mutex_;
  /// Blobs that may be held and not be durable yet, with the writes that must have ended before a sync for it to count.
  std::map<Digest, uint64_t> unsynced_blobs_ KCORAL_GUARDED_BY(unsynced_mutex_);
};

}  // namespace kcoral::store
