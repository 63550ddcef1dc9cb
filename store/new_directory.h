// A directory that is there under its name only once it is whole.
//
// It promises: the name is taken in one step, after everything below it is on the disk; what is not placed is removed
// again, and what a process that was killed has left beside the name is removed by whoever makes it next; nothing that
// somebody else has put there is touched.
//
// Until then it lies beside its name, as NAME.incomplete, and whoever makes it has that locked.
//
// Has one owner.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral::store {

class NewDirectory {
 public:
  /// `path`: absolute; nothing, or an empty directory, in a directory that exists. `entries`: the names of all that
  /// will ever be in it; what was left there and has another is not ours. kEnvironment, in one line, if it cannot be.
  static Result<NewDirectory> create(const std::string& path, std::vector<std::string> entries);
  NewDirectory(NewDirectory&& other) noexcept;
  NewDirectory& operator=(NewDirectory&&) = delete;
  ~NewDirectory();

  /// Where it is meanwhile. Mode 0700.
  const std::string& path() const { return now_at_; }

  /// Requires: called once; nothing is written in it any more.
  Status place();

  /// Removes what somebody who was killed has left of a directory that was to be `path`. False while somebody is at
  /// work on it.
  static bool remove_leftover(const std::string& path, const std::vector<std::string>& entries);

 private:
  NewDirectory(std::string path, std::string now_at, UniqueFd lock)
      : path_(std::move(path)), now_at_(std::move(now_at)), lock_(std::move(lock)) {}

  std::string path_;
  std::string now_at_;  // empty: it is not ours to remove any more
  UniqueFd lock_;
};

}  // namespace kcoral::store
