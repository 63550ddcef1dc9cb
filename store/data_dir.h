// The data directory and the lock that says whose it is.
//
// It promises: while a DataDir lives, no other server has the same directory; only the server's user can look into it.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral::store {

class DataDir {
 public:
  static constexpr std::string_view kDatabaseName = "queue.sqlite3";

  /// Creates the directory and its parents if need be. kEnvironment, in one line that says what to do, if it cannot be
  /// used, holds something else, or another server has it. What is not ours is left as it is, its mode too.
  static Result<DataDir> open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string database_path() const { return fmt::format("{}/{}", path_, kDatabaseName); }
  std::string content_path() const { return path_ + "/content"; }

  /// Makes the names of new files in it durable.
  Status sync() const;

 private:
  DataDir(std::string path, UniqueFd directory, UniqueFd lock)
      : path_(std::move(path)), directory_(std::move(directory)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd directory_;
  UniqueFd lock_;
};

}  // namespace kcoral::store
