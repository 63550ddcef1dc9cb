#include "store/content_transfer.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "schema/limits.h"
#include "store/content_keys.h"

namespace kcoral::store {

Status ContentTransfer::write(std::span<const std::string_view> pieces) {
  uint64_t bytes = 0;
  for (const std::string_view piece : pieces) bytes += piece.size();
  if (bytes >= limits::kTableFileBytesMin) {
    if (auto begun = begin_table_file(); !begun) return begun;
  }
  for (const std::string_view piece : pieces) {
    if (auto appended = append(piece); !appended) return appended;
  }
  if (!table_file_) return {};
  if (auto written = write_chunk(); !written) return written;
  const Status ingested = table_file_->ingest();
  failpoint("content.table.ingested");
  return ingested;
}

void ContentTransfer::finish(rocksdb::WriteBatch& batch) {
  if (!table_file_) put_in_batch(batch);
  if (has_mark_) batch.Delete(engine_.family(kDefault), writing_key(id_));
}

void ContentTransfer::abandon() {
  table_file_.reset();
  if (!has_mark_) return;
  if (auto removed = engine_.forget(id_); !removed) spdlog::warn("{}", removed.error().message);
}

/// The mark must be on disk before the file is in the database, which is durable by itself. At this moment nothing else
/// of ours waits to be synced, so that it costs little.
Status ContentTransfer::begin_table_file() {
  rocksdb::WriteBatch batch;
  batch.Put(engine_.family(kDefault), writing_key(id_), "");
  has_mark_ = true;
  if (auto marked = engine_.write(batch, "storing content"); !marked) return marked;
  if (auto synced = engine_.sync(); !synced) return fail(synced.error());
  failpoint("content.mark.synced");
  auto file = ContentTableFile::create(engine_, id_);
  if (!file) return fail(file.error());
  table_file_ = std::move(*file);
  return {};
}

Status ContentTransfer::append(std::string_view piece) {
  while (!piece.empty()) {
    if (gathered_bytes_ == limits::kChunkBytes) {
      if (auto written = write_chunk(); !written) return written;
    }
    const std::string_view part = piece.substr(0, limits::kChunkBytes - gathered_bytes_);
    gathered_.push_back(slice(part));
    gathered_bytes_ += part.size();
    piece.remove_prefix(part.size());
  }
  return {};
}

Status ContentTransfer::write_chunk() {
  if (table_file_) return put_in_table_file();
  rocksdb::WriteBatch batch;
  if (!has_mark_) batch.Put(engine_.family(kDefault), writing_key(id_), "");
  has_mark_ = true;
  put_in_batch(batch);
  const Status written = engine_.write(batch, "storing content");
  failpoint("content.chunk.written");
  return written;
}

Status ContentTransfer::put_in_table_file() {
  rocksdb::Slice chunk = gathered_.front();
  if (gathered_.size() > 1) {
    joined_.clear();
    for (const rocksdb::Slice& part : gathered_) joined_.append(part.data(), part.size());
    chunk = joined_;
  }
  auto put = table_file_->put(chunk_key(id_, index_), chunk);
  chunk_is_done();
  return put;
}

void ContentTransfer::put_in_batch(rocksdb::WriteBatch& batch) {
  const std::string key = chunk_key(id_, index_);
  const rocksdb::Slice key_slice(key);
  batch.Put(engine_.family(kChunks), rocksdb::SliceParts(&key_slice, 1),
            rocksdb::SliceParts(gathered_.data(), static_cast<int>(gathered_.size())));
  chunk_is_done();
}

void ContentTransfer::chunk_is_done() {
  gathered_.clear();
  gathered_bytes_ = 0;
  ++index_;
}

}  // namespace kcoral::store
