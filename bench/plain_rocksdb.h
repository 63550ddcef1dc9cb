// What RocksDB itself takes to keep bytes, as a yardstick: in chunks through its log, and then synced.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace kcoral::bench {

class PlainRocksdb {
 public:
  /// Ends the process if it cannot be opened, or later not be written.
  explicit PlainRocksdb(const std::string& directory);
  ~PlainRocksdb();
  PlainRocksdb(const PlainRocksdb&) = delete;
  PlainRocksdb& operator=(const PlainRocksdb&) = delete;

  /// From memory to synced.
  void keep(std::string_view bytes);

 private:
  struct Database;
  std::unique_ptr<Database> database_;
};

}  // namespace kcoral::bench
