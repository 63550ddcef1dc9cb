#include "store/content_engine.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>

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
#include "store/content_keys.h"

namespace kcoral::store {
namespace {

constexpr std::string_view kPlaceholder = "placeholder";
// No names that RocksDB would take for its own.
constexpr std::string_view kIncoming = "incoming";
constexpr std::string_view kCheckpoint = "checkpoint";
constexpr std::string_view kCheckpointBegun = "checkpoint.tmp";  // as RocksDB names it until it is whole

// Warnings that say nothing: of every table file that is about to be ingested, which is not in the manifest yet, where
// its id would be; and of every checkpoint, which keeps files from being removed twice over.
constexpr std::array<std::string_view, 2> kSaysNothing = {"opened without unique ID to verify", "File Deletions "};

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

/// Not what is stored is at fault, but what the process has left to read it with.
bool is_shortage(const rocksdb::Status& status) {
  if (status.IsMemoryLimit()) return true;
  if (!status.IsIOError()) return false;
  // RocksDB keeps the text of errno, and not its number.
  const std::string text = status.ToString();
  return std::ranges::any_of(std::array{EMFILE, ENFILE, ENOMEM},
                             [&text](int number) { return text.find(std::strerror(number)) != std::string::npos; });
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
    const auto is_in = [text](std::string_view known) { return text.find(known) != std::string_view::npos; };
    if (level == rocksdb::WARN_LEVEL && std::ranges::any_of(kSaysNothing, is_in)) return;
    spdlog::log(level >= rocksdb::ERROR_LEVEL ? spdlog::level::err : spdlog::level::warn, "RocksDB: {}", text);
  }
};

rocksdb::DBOptions database_options(std::shared_ptr<rocksdb::EventListener> listener) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.db_write_buffer_size = kMemtablesBytesMax;
  options.max_total_wal_size = kWalBytesMax;
  options.max_open_files = kOpenFilesMax;
  options.info_log = server_log();
  options.listeners = {std::move(listener)};
  options.avoid_flush_during_shutdown = true;  // what is not in the log is the placeholder
  return options;
}

/// Those of the database and of the table files that are on the way into it; the latter is empty then, and no
/// checkpoint is left.
Status make_directories(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directory(directory, error);  // RocksDB would, and call it an error that it had to
  for (const std::string_view name : {kIncoming, kCheckpoint, kCheckpointBegun}) {
    if (!error) std::filesystem::remove_all(directory / name, error);
  }
  if (!error) std::filesystem::create_directory(directory / kIncoming, error);
  if (!error) return {};
  return fail(ErrorKind::kEnvironment, "cannot open {}: {}", directory.string(), error.message());
}

}  // namespace

tl::unexpected<Error> failure(const rocksdb::Status& status, std::string_view what) {
  if (status.IsNoSpace()) return fail(ErrorKind::kBusy, "{}: no space is left on the disk", what);
  // A client sees the error; RocksDB's own words name paths of this host, and are for the log.
  spdlog::error("{}: {}", what, status.ToString());
  if (is_shortage(status)) return fail(ErrorKind::kBusy, "{}: the server has run out of memory or descriptors", what);
  return fail(ErrorKind::kEngine, "{}: the database failed; the server's log says how", what);
}

std::shared_ptr<rocksdb::Logger> server_log() { return std::make_shared<ServerLog>(); }

/// Counts how often the default family began an empty memtable.
class ContentEngine::DefaultMemtables final : public rocksdb::EventListener {
 public:
  void OnMemTableSealed(const rocksdb::MemTableInfo& sealed) override {
    if (sealed.cf_name == rocksdb::kDefaultColumnFamilyName) ++begun_;
  }
  uint64_t begun() const { return begun_; }

 private:
  std::atomic<uint64_t> begun_{1};  // that of the open database
};

ContentEngine::ContentEngine(std::string directory)
    : directory_(std::move(directory)), memtables_(std::make_shared<DefaultMemtables>()) {}

ContentEngine::~ContentEngine() {
  for (rocksdb::ColumnFamilyHandle* family : families_) (void)db_->DestroyColumnFamilyHandle(family);
  if (db_) (void)db_->Close();
}

Result<std::unique_ptr<ContentEngine>> ContentEngine::open(const std::string& directory) {
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  const rocksdb::ColumnFamilyOptions small = small_family(cache);
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (size_t index = 0; index < kFamilyCount; ++index) {
    families.emplace_back(kFamilyNames[index], index == kChunks ? chunk_family() : small);
  }
  std::unique_ptr<ContentEngine> engine(new ContentEngine(directory));
  if (auto made = make_directories(directory); !made) return fail(made.error());
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::Open(database_options(engine->memtables_), directory, families, &engine->families_, &db);
  if (!opened.ok()) return fail(ErrorKind::kEnvironment, "cannot open {}: {}", directory, opened.ToString());
  engine->db_.reset(db);
  return engine;
}

std::unique_ptr<rocksdb::Iterator> ContentEngine::iterate(FamilyIndex index) const {
  return std::unique_ptr<rocksdb::Iterator>(db_->NewIterator(rocksdb::ReadOptions(), family(index)));
}

Result<ContentId> ContentEngine::last_id() const {
  const auto chunks = iterate(kChunks);
  chunks->SeekToLast();
  if (!chunks->status().ok()) return failure(chunks->status(), "looking for the newest content");
  const auto marks = iterate(kDefault);
  marks->SeekForPrev(writing_key(std::numeric_limits<ContentId>::max()));
  if (!marks->status().ok()) return failure(marks->status(), "looking for the newest content");
  ContentId last = 0;
  if (chunks->Valid()) last = from_big_endian(view(chunks->key()).substr(0, 8));
  // One that was only begun must not be taken for another.
  if (marks->Valid() && view(marks->key()).starts_with(kWritingMark)) {
    last = std::max(last, from_big_endian(view(marks->key()).substr(kWritingMark.size())));
  }
  return last;
}

Status ContentEngine::write(rocksdb::WriteBatch& batch, std::string_view what) {
  ++begun_;
  const rocksdb::Status status = append(batch, {});
  ++ended_;
  if (!status.ok()) return failure(status, what);
  return {};
}

/// After a full disk RocksDB refuses all writes until it has found room again, for which it looks every few seconds. It
/// then begins another log if a memtable holds anything, and otherwise goes on with the log to which it could not
/// append, which its own assertions forbid: so one memtable is never empty. The placeholder in it is in no log.
rocksdb::Status ContentEngine::append(rocksdb::WriteBatch& batch, const rocksdb::WriteOptions& options) {
  const uint64_t memtable = memtables_->begun();
  if (memtable_with_placeholder_ != memtable) {
    rocksdb::WriteOptions unlogged;
    unlogged.disableWAL = true;
    if (db_->Put(unlogged, family(kDefault), slice(kPlaceholder), "").ok()) memtable_with_placeholder_ = memtable;
  }
  const rocksdb::Status status = db_->Write(options, &batch);
  out_of_space_ = status.IsNoSpace();
  return status;
}

Result<std::optional<std::string>> ContentEngine::get(FamilyIndex index, std::string_view key,
                                                      std::string_view what) const {
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), family(index), slice(key), &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) return failure(status, what);
  return std::optional<std::string>(std::move(value));
}

Status ContentEngine::read(ContentId id, uint64_t size_bytes,
                           const std::function<Status(std::string_view)>& sink) const {
  const std::string end = chunk_key(id + 1, 0);
  const rocksdb::Slice bound(end);
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &bound;
  options.readahead_size = size_bytes > limits::kChunkBytes ? kReadaheadBytes : 0;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> chunks(db_->NewIterator(options, family(kChunks)));
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

Result<uint64_t> ContentEngine::sync() {
  const uint64_t ended = ended_;
  // An empty write that is synced, and with it all that went before. Unlike SyncWAL it stands in line with the other
  // writes, so that it never comes upon a log to which one of them has just failed to append: RocksDB asserts that
  // nobody touches such a log, and refuses all writes until it has begun another.
  rocksdb::WriteOptions options;
  options.sync = true;
  rocksdb::WriteBatch nothing;
  const rocksdb::Status status = append(nothing, options);
  if (status.IsNoSpace()) return failure(status, "syncing");
  if (!status.ok()) {
    // The kernel reports a failed sync once and may then forget what it could not write: trying again would lie.
    spdlog::critical(
        "content cannot be synced to disk: {}; what is durable is no longer known, so the server ends here",
        status.ToString());
    spdlog::default_logger()->flush();
    std::abort();
  }
  uint64_t before = synced_;
  while (before < ended && !synced_.compare_exchange_weak(before, ended)) {
  }
  return ended;
}

std::string ContentEngine::incoming_path(ContentId id) const {
  return fmt::format("{}/{}/{}", directory_, kIncoming, id);
}

Status ContentEngine::ingest(const std::string& path) {
  rocksdb::IngestExternalFileOptions options;
  options.move_files = true;
  options.write_global_seqno = false;  // only versions before 5.16 look for it in the file
  const rocksdb::Status status = db_->IngestExternalFile(family(kChunks), {path}, options);
  // It was the manifest that found no room, and RocksDB refuses writes now. A full disk while the file is made concerns
  // nobody else.
  if (status.IsNoSpace()) out_of_space_ = true;
  if (!status.ok()) return failure(status, "storing content");
  return {};
}

std::string ContentEngine::checkpoint_path() const { return fmt::format("{}/{}", directory_, kCheckpoint); }

Status ContentEngine::checkpoint(const std::string& path) {
  constexpr std::string_view kWhat = "making a checkpoint of the content";
  rocksdb::Checkpoint* made = nullptr;
  if (const rocksdb::Status status = rocksdb::Checkpoint::Create(db_.get(), &made); !status.ok()) {
    return failure(status, kWhat);
  }
  const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
  const rocksdb::Status status = checkpoint->CreateCheckpoint(path, std::numeric_limits<uint64_t>::max());
  if (!status.ok()) return failure(status, kWhat);
  return {};
}

Status ContentEngine::forget(ContentId id) {
  const std::string begin = chunk_key(id, 0);
  const std::string end = chunk_key(id + 1, 0);
  const rocksdb::Slice first(begin);
  const rocksdb::Slice bound(end);
  const rocksdb::Status freed =
      rocksdb::DeleteFilesInRange(db_.get(), family(kChunks), &first, &bound, /*include_end=*/false);
  if (!freed.ok()) return failure(freed, "removing content");
  rocksdb::WriteBatch batch;
  batch.DeleteRange(family(kChunks), first, bound);
  batch.Delete(family(kDefault), writing_key(id));
  return write(batch, "removing content");
}

Status ContentEngine::forget_named(rocksdb::WriteBatch& batch, ContentId id, std::string_view what) {
  batch.Put(family(kDefault), writing_key(id), "");
  if (auto written = write(batch, what); !written) return written;
  Status forgotten = forget_nameless(id);
  if (!forgotten) {
    const MutexLock lock(rest_mutex_);
    rest_.insert(id);
  }
  return forgotten;
}

Status ContentEngine::forget_nameless(ContentId id) {
  if (auto synced = sync(); !synced) return fail(synced.error());
  return forget(id);
}

Status ContentEngine::forget_rest() {
  for (;;) {
    ContentId id = 0;
    {
      const MutexLock lock(rest_mutex_);
      if (rest_.empty()) return {};
      id = *rest_.begin();
    }
    if (auto forgotten = forget_nameless(id); !forgotten) return forgotten;
    const MutexLock lock(rest_mutex_);
    rest_.erase(id);
  }
}

}  // namespace kcoral::store
