// The chunks of one large content in a table file of their own, on the way into the database.
//
// It promises: what `ingest` has moved in is durable; what it has not leaves no file behind, except when the process
// ends, and then the next ContentEngine::open removes it. The disk writes while chunks are put; no more than two of
// them are in memory.
//
// Has one owner.
#pragma once

#include <rocksdb/sst_file_writer.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "store/content_engine.h"

namespace kcoral::store {

class ContentTableFile {
 public:
  /// Requires: the mark of `id` is durable, lest a crash leave chunks that nobody ever sweeps.
  static Result<std::unique_ptr<ContentTableFile>> create(ContentEngine& engine, ContentId id);
  ~ContentTableFile();
  ContentTableFile(const ContentTableFile&) = delete;
  ContentTableFile& operator=(const ContentTableFile&) = delete;

  /// Requires: keys ascend. That the disk is full or broken only `ingest` says.
  Status put(const rocksdb::Slice& key, const rocksdb::Slice& chunk);
  /// Requires: called once, after at least one `put`, and nothing after it.
  Status ingest();

 private:
  ContentTableFile(ContentEngine& engine, ContentId id);

  ContentEngine& engine_;
  const std::string path_;
  std::unique_ptr<rocksdb::SstFileWriter> writer_;
};

}  // namespace kcoral::store
