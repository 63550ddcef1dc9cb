#include "bench/plain_rocksdb.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "schema/limits.h"
#include "store/content_keys.h"

namespace kcoral::bench {
namespace {

void check(const rocksdb::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "RocksDB: %s\n", status.ToString().c_str());
  std::exit(1);
}

/// Those that the store has for chunks: the most that RocksDB does with such bytes on this path.
rocksdb::Options options() {
  rocksdb::BlockBasedTableOptions table;
  table.no_block_cache = true;
  table.checksum = rocksdb::kXXH3;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = 16 * limits::kMiB;
  options.max_write_buffer_number = 4;
  options.compression = rocksdb::kNoCompression;
  options.max_total_wal_size = 128 * limits::kMiB;
  options.avoid_flush_during_shutdown = true;
  return options;
}

}  // namespace

struct PlainRocksdb::Database {
  std::unique_ptr<rocksdb::DB> db;
  uint64_t next_key = 1;
};

PlainRocksdb::PlainRocksdb(const std::string& directory) : database_(std::make_unique<Database>()) {
  rocksdb::DB* db = nullptr;
  check(rocksdb::DB::Open(options(), directory, &db));
  database_->db.reset(db);
}

PlainRocksdb::~PlainRocksdb() = default;

void PlainRocksdb::keep(std::string_view bytes) {
  for (; !bytes.empty(); bytes.remove_prefix(std::min<size_t>(limits::kChunkBytes, bytes.size()))) {
    const std::string_view chunk = bytes.substr(0, limits::kChunkBytes);
    check(database_->db->Put({}, store::big_endian(database_->next_key++, 8),
                             rocksdb::Slice(chunk.data(), chunk.size())));
  }
  rocksdb::WriteOptions synced;
  synced.sync = true;
  rocksdb::WriteBatch nothing;
  check(database_->db->Write(synced, &nothing));
}

}  // namespace kcoral::bench
