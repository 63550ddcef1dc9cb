// One content on its way into RocksDB: pieces cut into chunks.
//
// It promises: the chunks are there when the batch that names the content is written, and not before in the sense of
// content.h: until then a mark says that they are nobody's.
//
// Has one owner. Requires: the pieces stay as they are until the batch is written.
#pragma once

#include <rocksdb/write_batch.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "store/content_engine.h"

namespace kcoral::store {

class ContentTransfer {
 public:
  ContentTransfer(ContentEngine& engine, ContentId id) : engine_(engine), id_(id) {}

  Status append(std::string_view piece);
  /// Adds the last chunk, which may be empty, to the batch that names the content.
  void finish(rocksdb::WriteBatch& batch);
  /// Takes back what was written; what that misses, the next sweep finds.
  void abandon();

 private:
  void put_chunk(rocksdb::WriteBatch& batch);
  Status write_chunk();

  ContentEngine& engine_;
  const ContentId id_;
  std::vector<rocksdb::Slice> gathered_;  // of the chunk that is not complete yet
  size_t gathered_bytes_ = 0;
  uint64_t index_ = 0;
};

}  // namespace kcoral::store
