#include "store/content_transfer.h"

#include <string>

#include "base/log.h"
#include "schema/limits.h"
#include "store/content_keys.h"

namespace kcoral::store {

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

void ContentTransfer::finish(rocksdb::WriteBatch& batch) {
  put_chunk(batch);
  if (index_ > 1) batch.Delete(engine_.family(kDefault), writing_key(id_));
}

void ContentTransfer::abandon() {
  if (index_ == 0) return;
  if (auto removed = engine_.forget(id_); !removed) spdlog::warn("{}", removed.error().message);
}

void ContentTransfer::put_chunk(rocksdb::WriteBatch& batch) {
  const std::string key = chunk_key(id_, index_++);
  const rocksdb::Slice key_slice(key);
  batch.Put(engine_.family(kChunks), rocksdb::SliceParts(&key_slice, 1),
            rocksdb::SliceParts(gathered_.data(), static_cast<int>(gathered_.size())));
  gathered_.clear();
  gathered_bytes_ = 0;
}

Status ContentTransfer::write_chunk() {
  rocksdb::WriteBatch batch;
  if (index_ == 0) batch.Put(engine_.family(kDefault), writing_key(id_), "");
  put_chunk(batch);
  return engine_.write(batch, "storing content");
}

}  // namespace kcoral::store
