#include "tests/unit/store/raw_content.h"

#include <cstdint>
#include <set>

namespace kcoral::store {
namespace {

std::string big_endian(uint64_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
  return text;
}

ContentId id_at(const std::string& text, size_t offset) {
  ContentId id = 0;
  for (size_t i = offset; i < offset + 8; ++i) id = (id << 8) | static_cast<uint8_t>(text.at(i));
  return id;
}

}  // namespace

RawContent::RawContent(const std::string& directory) {
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const char* name : {"default", "blobs", "artifacts", "chunks", "audit"}) {
    descriptors.emplace_back(name, rocksdb::ColumnFamilyOptions());
  }
  rocksdb::DB* db = nullptr;
  KCORAL_CHECK(rocksdb::DB::Open(rocksdb::DBOptions(), directory, descriptors, &families_, &db).ok());
  db_.reset(db);
}

RawContent::~RawContent() {
  for (rocksdb::ColumnFamilyHandle* family : families_) (void)db_->DestroyColumnFamilyHandle(family);
}

rocksdb::ColumnFamilyHandle* RawContent::family(std::string_view name) const {
  for (rocksdb::ColumnFamilyHandle* family : families_) {
    if (family->GetName() == name) return family;
  }
  KCORAL_CHECK(false);
  return nullptr;
}

void RawContent::put(std::string_view family_name, const std::string& key, std::string_view value) {
  const rocksdb::Slice slice(value.data(), value.size());
  KCORAL_CHECK(db_->Put(rocksdb::WriteOptions(), family(family_name), key, slice).ok());
}

template <typename Function>
void RawContent::for_each(std::string_view family_name, Function function) {
  const std::unique_ptr<rocksdb::Iterator> rows(db_->NewIterator(rocksdb::ReadOptions(), family(family_name)));
  for (rows->SeekToFirst(); rows->Valid(); rows->Next()) function(rows->key().ToString(), rows->value().ToString());
  KCORAL_CHECK(rows->status().ok());
}

void RawContent::damage_blob(const Digest& digest, std::string_view bytes) {
  const std::string name(reinterpret_cast<const char*>(digest.bytes().data()), digest.bytes().size());
  std::string entry;
  KCORAL_CHECK(db_->Get(rocksdb::ReadOptions(), family("blobs"), name, &entry).ok());
  put("chunks", big_endian(id_at(entry, 1), 8) + big_endian(0, 4), bytes);
}

ContentId RawContent::begin_write() {
  ContentId last = 0;
  for_each("chunks", [&](const std::string& key, const std::string&) { last = id_at(key, 0); });
  const ContentId id = last + 1;
  put("default", "writing" + big_endian(id, 8), "");
  return id;
}

ContentId RawContent::half_write(std::string_view chunk) {
  const ContentId id = begin_write();
  put("chunks", big_endian(id, 8) + big_endian(0, 4), chunk);
  return id;
}

std::vector<ContentId> RawContent::nameless() {
  std::set<ContentId> ids;
  for_each("chunks", [&](const std::string& key, const std::string&) { ids.insert(id_at(key, 0)); });
  for_each("blobs", [&](const std::string&, const std::string& entry) { ids.erase(id_at(entry, 1)); });
  for_each("artifacts", [&](const std::string& key, const std::string&) { ids.erase(id_at(key, 16)); });
  return {ids.begin(), ids.end()};
}

}  // namespace kcoral::store
