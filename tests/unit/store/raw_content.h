// The content as it lies on disk, for tests that damage it or look for what should not be there. It knows nothing of
// ours but the format that store/content.h documents.
#pragma once

#include <rocksdb/db.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/content.h"

namespace kcoral::store {

/// Requires: nobody else has the directory open.
class RawContent {
 public:
  explicit RawContent(const std::string& directory);
  ~RawContent();
  RawContent(const RawContent&) = delete;
  RawContent& operator=(const RawContent&) = delete;

  /// Replaces the first chunk of a blob without its name noticing.
  void damage_blob(const Digest& digest, std::string_view bytes);
  /// Leaves a mark as a crash before the first chunk does.
  ContentId begin_write();
  /// Leaves one chunk as a crash in the middle of writing does.
  ContentId half_write(std::string_view chunk);
  /// Contents that have chunks but no name.
  std::vector<ContentId> nameless();

 private:
  rocksdb::ColumnFamilyHandle* family(std::string_view name) const;
  void put(std::string_view family_name, const std::string& key, std::string_view value);
  template <typename Function>
  void for_each(std::string_view family_name, Function function);

  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
};

}  // namespace kcoral::store
