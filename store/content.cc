#include "store/content.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::store {
namespace {

constexpr char kBlobVersion = 1;
constexpr size_t kBlobEntryBytes = 1 + 8 + 8;
constexpr std::string_view kWritingMark = "writing";
constexpr std::string_view kPlaceholder = "placeholder";

constexpr size_t kBlockCacheBytes = 16 * limits::kMiB;  // names and audit; chunks are read past it
// Blobs of 64 MiB, synced: 228-266 MB/s and 143 MB of memory at most. With 64 MiB memtables 207-249 MB/s and 215-240
// MB.
constexpr size_t kChunkMemtableBytes = 16 * limits::kMiB;
constexpr size_t kSmallMemtableBytes = 4 * limits::kMiB;
constexpr size_t kMemtablesBytesMax = 64 * limits::kMiB;
constexpr uint64_t kWalBytesMax = 128 * limits::kMiB;
constexpr int kOpenFilesMax = 256;
constexpr size_t kLogLineBytes = 1024;
constexpr size_t kReadaheadBytes = 4 * limits::kMiB;

enum FamilyIndex : size_t { kDefault, kBlobs, kArtifacts, kChunks, kAudit, kFamilyCount };

std::string big_endian(uint64_t value, int bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (int i = bytes - 1; i >= 0; --i) {
    text[static_cast<size_t>(i)] = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return text;
}

uint64_t from_big_endian(std::string_view text) {
  uint64_t value = 0;
  for (const char c : text) value = (value << 8) | static_cast<uint8_t>(c);
  return value;
}

template <typename Name>
std::string_view raw(const Name& name) {
  return {reinterpret_cast<const char*>(name.bytes().data()), name.bytes().size()};
}

std::string chunk_key(ContentId id, uint64_t index) { return big_endian(id, 8) + big_endian(index, 4); }
std::string artifact_key(const Uuid& request_id, ContentId id) {
  return std::string(raw(request_id)) + big_endian(id, 8);
}
std::string writing_key(ContentId id) { return std::string(kWritingMark) + big_endian(id, 8); }

std::string_view view(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

/// Not what is stored is at fault, but what the process has left to read it with.
bool is_shortage(const rocksdb::Status& status) {
  if (status.IsMemoryLimit()) return true;
  if (!status.IsIOError()) return false;
  // RocksDB keeps the text of errno, and not its number.
  const std::string text = status.ToString();
  return std::ranges::any_of(std::array{EMFILE, ENFILE, ENOMEM},
                             [&text](int number) { return text.find(std::strerror(number)) != std::string::npos; });
}

tl::unexpected<Error> failure(const rocksdb::Status& status, std::string_view what) {
  if (status.IsNoSpace()) return fail(ErrorKind::kBusy, "{}: no space is left on the disk", what);
  // A client sees the error; RocksDB's own words name paths of this host, and are for the log.
  spdlog::error("{}: {}", what, status.ToString());
  if (is_shortage(status)) return fail(ErrorKind::kBusy, "{}: the server has run out of memory or descriptors", what);
  return fail(ErrorKind::kEngine, "{}: the database failed; the server's log says how", what);
}

rocksdb::ColumnFamilyOptions small_family(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.checksum = rocksdb::kXXH3;  // Debian's build computes CRC32C without the hardware
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = kSmallMemtableBytes;
  options.compression = rocksdb::kLZ4Compression;
  return options;
}

rocksdb::ColumnFamilyOptions chunk_family() {
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;  // what is hot is a memfd
  table.checksum = rocksdb::kXXH3;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = kChunkMemtableBytes;
  options.max_write_buffer_number = 4;            // a burst goes on while one is flushed
  options.compression = rocksdb::kNoCompression;  // tensors do not compress, and it would cost more than the disk
  return options;
}

/// What RocksDB has to say goes into the server's log. A file of its own would lie on the disk that may be full, and
/// the library asserts that it can write there.
class ServerLog final : public rocksdb::Logger {
 public:
  ServerLog() : Logger(rocksdb::WARN_LEVEL) {}

  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override { Logv(rocksdb::WARN_LEVEL, format, arguments); }
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < GetInfoLogLevel()) return;
    std::array<char, kLogLineBytes> line;
    std::vsnprintf(line.data(), line.size(), format, arguments);
    std::string_view text(line.data());
    while (text.ends_with('\n')) text.remove_suffix(1);
    spdlog::log(level >= rocksdb::ERROR_LEVEL ? spdlog::level::err : spdlog::level::warn, "RocksDB: {}", text);
  }
};

/// Counts how often the default family began an empty memtable.
class DefaultMemtables final : public rocksdb::EventListener {
 public:
  void OnMemTableSealed(const rocksdb::MemTableInfo& sealed) override {
    if (sealed.cf_name == rocksdb::kDefaultColumnFamilyName) ++begun_;
  }
  uint64_t begun() const { return begun_; }

 private:
  std::atomic<uint64_t> begun_{1};  // that of the open database
};

rocksdb::DBOptions database_options(std::shared_ptr<rocksdb::EventListener> listener) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.db_write_buffer_size = kMemtablesBytesMax;
  options.max_total_wal_size = kWalBytesMax;
  options.max_open_files = kOpenFilesMax;
  options.info_log = std::make_shared<ServerLog>();
  options.listeners = {std::move(listener)};
  options.avoid_flush_during_shutdown = true;  // what is not in the log is the placeholder
  return options;
}

}  // namespace

struct Content::Engine {
  std::unique_ptr<rocksdb::DB> db;
  std::vector<rocksdb::ColumnFamilyHandle*> families;
  std::shared_ptr<DefaultMemtables> memtables = std::make_shared<DefaultMemtables>();
  std::atomic<uint64_t> memtable_with_placeholder{0};

  // Writes that have begun, writes that have ended, and how many had ended before the last successful sync.
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> ended{0};
  std::atomic<uint64_t> synced{0};
  std::atomic<bool> out_of_space{false};

  ~Engine() {
    for (rocksdb::ColumnFamilyHandle* family : families) (void)db->DestroyColumnFamilyHandle(family);
    if (db) (void)db->Close();
  }

  rocksdb::ColumnFamilyHandle* family(FamilyIndex index) const { return families[index]; }

  Status write(rocksdb::WriteBatch& batch, std::string_view what) {
    ++begun;
    const rocksdb::Status status = append(batch, {});
    ++ended;
    if (!status.ok()) return failure(status, what);
    return {};
  }

  /// After a full disk RocksDB refuses all writes until it has found room again, for which it looks every few seconds.
  /// It then begins another log if a memtable holds anything, and otherwise goes on with the log to which it could not
  /// append, which its own assertions forbid: so one memtable is never empty. The placeholder in it is in no log.
  rocksdb::Status append(rocksdb::WriteBatch& batch, const rocksdb::WriteOptions& options) {
    const uint64_t memtable = memtables->begun();
    if (memtable_with_placeholder != memtable) {
      rocksdb::WriteOptions unlogged;
      unlogged.disableWAL = true;
      if (db->Put(unlogged, family(kDefault), rocksdb::Slice(kPlaceholder.data(), kPlaceholder.size()), "").ok()) {
        memtable_with_placeholder = memtable;
      }
    }
    const rocksdb::Status status = db->Write(options, &batch);
    out_of_space = status.IsNoSpace();
    return status;
  }

  Result<std::optional<std::string>> get(FamilyIndex index, const std::string_view key, std::string_view what) const {
    std::string value;
    const rocksdb::Status status =
        db->Get(rocksdb::ReadOptions(), family(index), rocksdb::Slice(key.data(), key.size()), &value);
    if (status.IsNotFound()) return std::optional<std::string>();
    if (!status.ok()) return failure(status, what);
    return std::optional<std::string>(std::move(value));
  }

  void forget_chunks(rocksdb::WriteBatch& batch, ContentId id) const {
    batch.DeleteRange(family(kChunks), chunk_key(id, 0), chunk_key(id + 1, 0));
    batch.Delete(family(kDefault), writing_key(id));
  }

  Status forget(ContentId id) {
    rocksdb::WriteBatch batch;
    forget_chunks(batch, id);
    return write(batch, "removing content");
  }

  /// Hands the chunks of `id` to `sink`; kNotFound when they are not what was stored.
  Status read(ContentId id, uint64_t size_bytes, const std::function<Status(std::string_view)>& sink) const;
};

Status Content::Engine::read(ContentId id, uint64_t size_bytes,
                             const std::function<Status(std::string_view)>& sink) const {
  const std::string end = chunk_key(id + 1, 0);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &bound;
  options.readahead_size = size_bytes > limits::kChunkBytes ? kReadaheadBytes : 0;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> chunks(db->NewIterator(options, family(kChunks)));
  uint64_t index = 0;
  uint64_t read_bytes = 0;
  for (chunks->Seek(chunk_key(id, 0)); chunks->Valid(); chunks->Next(), ++index) {
    if (view(chunks->key()) != chunk_key(id, index)) break;
    read_bytes += chunks->value().size();
    if (read_bytes > size_bytes) break;
    if (auto taken = sink(view(chunks->value())); !taken) return taken;
  }
  if (chunks->status().IsCorruption()) return fail(ErrorKind::kNotFound, "{}", chunks->status().ToString());
  if (!chunks->status().ok()) return failure(chunks->status(), "reading content");
  if (read_bytes != size_bytes) {
    return fail(ErrorKind::kNotFound, "content {} should have {} bytes and has {}{}", id, size_bytes,
                read_bytes > size_bytes ? "at least " : "", read_bytes);
  }
  return {};
}

/// Pieces cut into chunks, and the chunks written until one is left: the last goes into the batch that names the
/// content.
class Content::Transfer {
 public:
  Transfer(Engine& engine, ContentId id) : engine_(engine), id_(id) {}

  Status append(std::string_view piece) {
    while (!piece.empty()) {
      if (gathered_bytes_ == limits::kChunkBytes) {
        if (auto written = write_chunk(); !written) return written;
      }
      const std::string_view part = piece.substr(0, limits::kChunkBytes - gathered_bytes_);
      gathered_.emplace_back(part.data(), part.size());
      gathered_bytes_ += part.size();
      piece.remove_prefix(part.size());
    }
    return {};
  }

  /// Adds the last chunk, which may be empty, to the batch that names the content.
  void finish(rocksdb::WriteBatch& batch) {
    put_chunk(batch);
    if (index_ > 1) batch.Delete(engine_.family(kDefault), writing_key(id_));
  }

  /// Takes back what was written; what that misses, the next sweep finds.
  void abandon() {
    if (index_ == 0) return;
    if (auto removed = engine_.forget(id_); !removed) spdlog::warn("{}", removed.error().message);
  }

 private:
  void put_chunk(rocksdb::WriteBatch& batch) {
    const std::string key = chunk_key(id_, index_++);
    const rocksdb::Slice key_slice(key);
    batch.Put(engine_.family(kChunks), rocksdb::SliceParts(&key_slice, 1),
              rocksdb::SliceParts(gathered_.data(), static_cast<int>(gathered_.size())));
    gathered_.clear();
    gathered_bytes_ = 0;
  }

  Status write_chunk() {
    rocksdb::WriteBatch batch;
    if (index_ == 0) batch.Put(engine_.family(kDefault), writing_key(id_), "");
    put_chunk(batch);
    return engine_.write(batch, "storing content");
  }

  Engine& engine_;
  const ContentId id_;
  std::vector<rocksdb::Slice> gathered_;
  size_t gathered_bytes_ = 0;
  uint64_t index_ = 0;
};

Content::Content(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

Content::~Content() = default;

Result<std::unique_ptr<Content>> Content::open(const std::string& directory) {
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  const rocksdb::ColumnFamilyOptions small = small_family(cache);
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {rocksdb::kDefaultColumnFamilyName, small},
      {"blobs", small},
      {"artifacts", small},
      {"chunks", chunk_family()},
      {"audit", small},
  };
  KCORAL_CHECK(families.size() == kFamilyCount);
  auto engine = std::make_unique<Engine>();
  std::error_code ignored;
  std::filesystem::create_directory(directory, ignored);  // RocksDB would, and call it an error that it had to
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::Open(database_options(engine->memtables), directory, families, &engine->families, &db);
  if (!opened.ok()) return fail(ErrorKind::kEnvironment, "cannot open {}: {}", directory, opened.ToString());
  engine->db.reset(db);

  const std::unique_ptr<rocksdb::Iterator> chunks(db->NewIterator(rocksdb::ReadOptions(), engine->family(kChunks)));
  chunks->SeekToLast();
  const ContentId last = chunks->Valid() ? from_big_endian(view(chunks->key()).substr(0, 8)) : 0;
  if (!chunks->status().ok()) return fail(ErrorKind::kEnvironment, "{}: {}", directory, chunks->status().ToString());
  std::unique_ptr<Content> content(new Content(std::move(engine)));
  content->next_id_ = last + 1;
  return content;
}

Result<std::optional<Content::BlobEntry>> Content::blob_entry(const Digest& digest) {
  auto value = engine_->get(kBlobs, raw(digest), "looking a blob up");
  if (!value) return fail(value.error());
  if (!*value) return std::optional<BlobEntry>();
  const std::string& entry = **value;
  if (entry.size() != kBlobEntryBytes || entry[0] != kBlobVersion) {
    return fail(ErrorKind::kEngine, "the entry of blob {} has an unknown form", digest.hex());
  }
  const std::string_view numbers = std::string_view(entry).substr(1);
  return std::optional<BlobEntry>(
      BlobEntry{.id = from_big_endian(numbers.substr(0, 8)), .size_bytes = from_big_endian(numbers.substr(8))});
}

Status Content::put_blob(const Digest& digest, std::string_view bytes) {
  auto held = blob_entry(digest);
  if (!held) return fail(held.error());
  if (*held) return {};

  const ContentId id = next_id_++;
  Transfer transfer(*engine_, id);
  Status stored = transfer.append(bytes);
  if (stored) {
    const MutexLock lock(naming_mutex_);
    held = blob_entry(digest);
    if (held && !*held) {
      rocksdb::WriteBatch batch;
      transfer.finish(batch);
      const std::string entry = std::string(1, kBlobVersion) + big_endian(id, 8) + big_endian(bytes.size(), 8);
      const std::string_view key = raw(digest);
      batch.Put(engine_->family(kBlobs), rocksdb::Slice(key.data(), key.size()), entry);
      // Before anybody can see it. Until its own end is known, no sync makes it durable.
      note_unsynced(digest, std::numeric_limits<uint64_t>::max());
      stored = engine_->write(batch, "storing a blob");
      note_unsynced(digest, stored ? std::optional(engine_->ended.load()) : std::nullopt);
      if (stored) return {};
    }
  }
  // An error, or somebody else was faster.
  transfer.abandon();
  if (!held) return fail(held.error());
  return stored;
}

void Content::note_unsynced(const Digest& blob, std::optional<uint64_t> ended) {
  const MutexLock lock(unsynced_mutex_);
  if (ended) {
    unsynced_blobs_[blob] = *ended;
  } else {
    unsynced_blobs_.erase(blob);
  }
}

Result<std::optional<uint64_t>> Content::blob_bytes(const Digest& digest) {
  auto entry = blob_entry(digest);
  if (!entry) return fail(entry.error());
  if (!*entry) return std::optional<uint64_t>();
  return std::optional<uint64_t>((*entry)->size_bytes);
}

Result<std::shared_ptr<const SealedMemory>> Content::load_blob(const Digest& digest) {
  auto entry = blob_entry(digest);
  if (!entry) return fail(entry.error());
  if (!*entry) return fail(ErrorKind::kNotFound, "blob {} is not held", digest.hex());
  auto memory = MemoryWriter::create("kcoral-blob");
  if (!memory) return fail(memory.error());
  Sha256 hash;
  const Status read = engine_->read((*entry)->id, (*entry)->size_bytes, [&](std::string_view chunk) {
    hash.update(std::as_bytes(std::span(chunk)));
    return memory->append(chunk);
  });
  if (!read && read.error().kind != ErrorKind::kNotFound) return fail(read.error());
  if (!read || hash.finish() != digest) {
    const std::string why = read ? "its digest is another" : read.error().message;
    if (auto dropped = drop_damaged_blob(digest, (*entry)->id, why); !dropped) return fail(dropped.error());
    return fail(ErrorKind::kNotFound, "blob {} was damaged on disk and is held no longer", digest.hex());
  }
  return std::move(*memory).seal();
}

Status Content::drop_damaged_blob(const Digest& digest, ContentId id, std::string_view why) {
  spdlog::error("blob {} is damaged on disk and dropped: {}", digest.hex(), why);
  const MutexLock lock(naming_mutex_);
  auto entry = blob_entry(digest);
  if (!entry) return fail(entry.error());
  if (!*entry || (*entry)->id != id) return {};
  rocksdb::WriteBatch batch;
  const std::string_view key = raw(digest);
  batch.Delete(engine_->family(kBlobs), rocksdb::Slice(key.data(), key.size()));
  engine_->forget_chunks(batch, id);
  return engine_->write(batch, "dropping a damaged blob");
}

Result<ContentId> Content::put_artifact(const Uuid& request_id, std::string_view header,
                                        std::span<const std::string_view> pieces) {
  const ContentId id = next_id_++;
  Transfer transfer(*engine_, id);
  Status stored;
  for (const std::string_view piece : pieces) {
    stored = transfer.append(piece);
    if (!stored) break;
  }
  if (stored) {
    rocksdb::WriteBatch batch;
    transfer.finish(batch);
    batch.Put(engine_->family(kArtifacts), artifact_key(request_id, id), rocksdb::Slice(header.data(), header.size()));
    stored = engine_->write(batch, "storing an answer");
    if (stored) return id;
  }
  transfer.abandon();
  return fail(stored.error());
}

Result<std::optional<std::string>> Content::artifact_header(const Uuid& request_id, ContentId id) {
  return engine_->get(kArtifacts, artifact_key(request_id, id), "looking an answer up");
}

Status Content::read_artifact(ContentId id, uint64_t size_bytes, const std::function<Status(std::string_view)>& sink) {
  Status read = engine_->read(id, size_bytes, sink);
  if (!read && read.error().kind == ErrorKind::kNotFound) {
    return fail(ErrorKind::kEngine, "a stored answer is damaged: {}", read.error().message);
  }
  return read;
}

Status Content::drop_artifact(const Uuid& request_id, ContentId id) {
  rocksdb::WriteBatch batch;
  batch.Delete(engine_->family(kArtifacts), artifact_key(request_id, id));
  engine_->forget_chunks(batch, id);
  return engine_->write(batch, "removing an answer");
}

Status Content::drop_artifacts(const Uuid& request_id) {
  const std::unique_ptr<rocksdb::Iterator> entries(
      engine_->db->NewIterator(rocksdb::ReadOptions(), engine_->family(kArtifacts)));
  for (entries->Seek(artifact_key(request_id, 0)); entries->Valid(); entries->Next()) {
    if (!entries->key().starts_with(std::string(raw(request_id)))) break;
    const ContentId id = from_big_endian(view(entries->key()).substr(16));
    if (auto dropped = drop_artifact(request_id, id); !dropped) return dropped;
  }
  if (!entries->status().ok()) return failure(entries->status(), "looking for answers");
  return {};
}

Status Content::put_records(std::span<const StoredRecord> records) {
  rocksdb::WriteBatch batch;
  for (const StoredRecord& record : records) {
    batch.Put(engine_->family(kAudit), std::string(raw(record.request_id)) + big_endian(record.seq, 8), record.text);
  }
  return engine_->write(batch, "storing audit records");
}

Result<std::vector<StoredRecord>> Content::records(const Uuid& request_id) {
  const std::string prefix(raw(request_id));
  const std::unique_ptr<rocksdb::Iterator> entries(
      engine_->db->NewIterator(rocksdb::ReadOptions(), engine_->family(kAudit)));
  std::vector<StoredRecord> found;
  for (entries->Seek(prefix); entries->Valid() && entries->key().starts_with(prefix); entries->Next()) {
    found.push_back({.request_id = request_id,
                     .seq = from_big_endian(view(entries->key()).substr(prefix.size())),
                     .text = entries->value().ToString()});
  }
  if (!entries->status().ok()) return failure(entries->status(), "reading audit records");
  return found;
}

Status Content::sync() {
  const uint64_t ended = engine_->ended;
  // An empty write that is synced, and with it all that went before. Unlike SyncWAL it stands in line with the other
  // writes, so that it never comes upon a log to which one of them has just failed to append: RocksDB asserts that
  // nobody touches such a log, and refuses all writes until it has begun another.
  rocksdb::WriteOptions options;
  options.sync = true;
  rocksdb::WriteBatch nothing;
  const rocksdb::Status status = engine_->append(nothing, options);
  if (status.IsNoSpace()) return failure(status, "syncing");
  if (!status.ok()) {
    // The kernel reports a failed sync once and may then forget what it could not write: trying again would lie.
    spdlog::critical(
        "content cannot be synced to disk: {}; what is durable is no longer known, so the server ends here",
        status.ToString());
    spdlog::default_logger()->flush();
    std::abort();
  }
  uint64_t before = engine_->synced;
  while (before < ended && !engine_->synced.compare_exchange_weak(before, ended)) {
  }
  const MutexLock lock(unsynced_mutex_);
  std::erase_if(unsynced_blobs_, [ended](const auto& blob) { return blob.second <= ended; });
  return {};
}

bool Content::is_synced() const {
  // Equal only if every write that has begun had also ended before the last sync.
  return engine_->synced == engine_->begun && !engine_->out_of_space;
}

bool Content::is_synced(const Digest& blob) const {
  const MutexLock lock(unsynced_mutex_);
  return !unsynced_blobs_.contains(blob) && !engine_->out_of_space;
}

bool Content::is_out_of_space() const { return engine_->out_of_space; }

Status Content::sweep() {
  std::vector<ContentId> unfinished;
  {
    const std::unique_ptr<rocksdb::Iterator> marks(
        engine_->db->NewIterator(rocksdb::ReadOptions(), engine_->family(kDefault)));
    const std::string prefix(kWritingMark);
    for (marks->Seek(prefix); marks->Valid() && marks->key().starts_with(prefix); marks->Next()) {
      unfinished.push_back(from_big_endian(view(marks->key()).substr(prefix.size())));
    }
    if (!marks->status().ok()) return failure(marks->status(), "looking for unfinished content");
  }
  for (const ContentId id : unfinished) {
    if (auto removed = engine_->forget(id); !removed) return removed;
  }
  if (!unfinished.empty()) spdlog::info("removed {} contents that were half written", unfinished.size());
  return {};
}

}  // namespace kcoral::store
