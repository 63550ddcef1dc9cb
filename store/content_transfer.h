// One content on its way into RocksDB: pieces cut into chunks. A small one goes through the log and the memtables, as
// everything else does, and its last chunk into the batch that names it. A large one gets a table file of its own,
// which is ingested: its bytes reach the disk once, instead of going into the log, then a table, and then, as likely as
// not, tables of compactions.
//
// It promises: at no moment are there chunks of a content on disk that has neither a name nor a mark there.
//
// Has one owner. Requires: the pieces stay as they are until the batch is written.
#pragma once

#include <rocksdb/write_batch.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "store/content_engine.h"
#include "store/content_table_file.h"

namespace kcoral::store {

class ContentTransfer {
 public:
  ContentTransfer(ContentEngine& engine, ContentId id) : engine_(engine), id_(id) {}

  /// Writes `pieces` one after another. Requires: called once.
  Status write(std::span<const std::string_view> pieces);
  /// Adds to the batch that names the content what belongs with it.
  void finish(rocksdb::WriteBatch& batch);
  /// Takes back what was written; what that misses, the next sweep finds.
  void abandon();

 private:
  Status begin_table_file();
  Status append(std::string_view piece);
  Status write_chunk();
  Status put_in_table_file();
  void put_in_batch(rocksdb::WriteBatch& batch);
  void chunk_is_done();

  ContentEngine& engine_;
  const ContentId id_;
  std::unique_ptr<ContentTableFile> table_file_;
  bool has_mark_ = false;
  std::vector<rocksdb::Slice> gathered_;  // of the chunk that is not complete yet
  size_t gathered_bytes_ = 0;
  uint64_t index_ = 0;
  std::string joined_;  // a chunk of several pieces
};

}  // namespace kcoral::store
