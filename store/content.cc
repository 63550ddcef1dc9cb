#include "store/content.h"

#include <limits>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/content_checkpoint.h"
#include "store/content_engine.h"
#include "store/content_keys.h"
#include "store/content_transfer.h"

namespace kcoral::store {
namespace {

constexpr char kBlobVersion = 1;
constexpr size_t kBlobEntryBytes = 1 + 8 + 8;

}  // namespace

Content::Content(std::unique_ptr<ContentEngine> engine) : engine_(std::move(engine)) {}

Content::~Content() = default;

Result<std::unique_ptr<Content>> Content::open(const std::string& directory) {
  auto engine = ContentEngine::open(directory);
  if (!engine) return fail(engine.error());
  const auto last = (*engine)->last_id();
  if (!last) return fail(ErrorKind::kEnvironment, "{}: {}", directory, last.error().message);
  std::unique_ptr<Content> content(new Content(std::move(*engine)));
  content->next_id_ = *last + 1;
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
  ContentTransfer transfer(*engine_, id);
  const std::string_view pieces[] = {bytes};
  Status stored = transfer.write(pieces);
  if (stored) {
    const MutexLock lock(naming_mutex_);
    held = blob_entry(digest);
    if (held && !*held) {
      rocksdb::WriteBatch batch;
      transfer.finish(batch);
      const std::string entry = std::string(1, kBlobVersion) + big_endian(id, 8) + big_endian(bytes.size(), 8);
      batch.Put(engine_->family(kBlobs), slice(raw(digest)), entry);
      // Before anybody can see it. Until its own end is known, no sync makes it durable.
      note_unsynced(digest, std::numeric_limits<uint64_t>::max());
      stored = engine_->write(batch, "storing a blob");
      failpoint("content.name.written");
      note_unsynced(digest, stored ? std::optional(engine_->ended()) : std::nullopt);
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
  batch.Delete(engine_->family(kBlobs), slice(raw(digest)));
  return engine_->forget_named(batch, id, "dropping a damaged blob");
}

Result<ContentId> Content::put_artifact(const Uuid& request_id, std::string_view header,
                                        std::span<const std::string_view> pieces) {
  const ContentId id = next_id_++;
  ContentTransfer transfer(*engine_, id);
  Status stored = transfer.write(pieces);
  if (stored) {
    rocksdb::WriteBatch batch;
    transfer.finish(batch);
    batch.Put(engine_->family(kArtifacts), artifact_key(request_id, id), slice(header));
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
  const StepGate::Step step(gate_);
  // Whoever tries again after a full disk finds no name any more; and of a blob that was dropped nobody tries again.
  if (auto rest = engine_->forget_rest(); !rest) return rest;
  // Whoever repeats a removal that a crash interrupted may find that the id names another content by now.
  auto named = artifact_header(request_id, id);
  if (!named) return fail(named.error());
  if (!*named) return {};
  rocksdb::WriteBatch batch;
  batch.Delete(engine_->family(kArtifacts), artifact_key(request_id, id));
  return engine_->forget_named(batch, id, "removing an answer");
}

Status Content::drop_artifacts(const Uuid& request_id) {
  const auto entries = engine_->iterate(kArtifacts);
  for (entries->Seek(artifact_key(request_id, 0)); entries->Valid(); entries->Next()) {
    const auto name = artifact_of(view(entries->key()));
    if (!name || name->request_id != request_id) break;
    if (auto dropped = drop_artifact(request_id, name->id); !dropped) return dropped;
  }
  if (!entries->status().ok()) return failure(entries->status(), "looking for answers");
  return {};
}

Status Content::put_records(std::span<const StoredRecord> records) {
  const StepGate::Step step(gate_);
  rocksdb::WriteBatch batch;
  for (const StoredRecord& record : records) {
    batch.Put(engine_->family(kAudit), std::string(raw(record.request_id)) + big_endian(record.seq, 8), record.text);
  }
  return engine_->write(batch, "storing audit records");
}

Status Content::drop_records(const Uuid& request_id) {
  const StepGate::Step step(gate_);
  const std::string prefix(raw(request_id));
  rocksdb::WriteBatch batch;
  batch.DeleteRange(engine_->family(kAudit), prefix, prefix + std::string(8, '\xff'));
  return engine_->write(batch, "removing audit records");
}

Result<std::vector<StoredRecord>> Content::records(const Uuid& request_id) {
  const std::string prefix(raw(request_id));
  const auto entries = engine_->iterate(kAudit);
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
  const auto ended = engine_->sync();
  if (!ended) return fail(ended.error());
  const MutexLock lock(unsynced_mutex_);
  std::erase_if(unsynced_blobs_, [ended = *ended](const auto& blob) { return blob.second <= ended; });
  return {};
}

bool Content::is_synced() const { return engine_->is_synced() && !engine_->is_out_of_space(); }

bool Content::is_synced(const Digest& blob) const {
  const MutexLock lock(unsynced_mutex_);
  return !unsynced_blobs_.contains(blob) && !engine_->is_out_of_space();
}

bool Content::is_out_of_space() const { return engine_->is_out_of_space(); }

Result<std::unique_ptr<ContentCheckpoint>> Content::checkpoint() { return ContentCheckpoint::make(*engine_); }

Status Content::sweep() {
  std::vector<ContentId> unfinished;
  {
    const auto marks = engine_->iterate(kDefault);
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
