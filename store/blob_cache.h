// The hot blobs: sealed memory by digest, the least recently used going first when a budget is passed.
//
// It promises: what it holds never exceeds its budgets; content that somebody uses stays alive through its shared_ptr
// when it is dropped here. Thread-safe.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/memfd.h"
#include "base/mutex.h"
#include "base/sha256.h"

namespace kcoral::store {

class BlobCache {
 public:
  /// Each blob is an open descriptor as well as memory, hence two budgets.
  BlobCache(uint64_t bytes_max, size_t blobs_max) : bytes_max_(bytes_max), blobs_max_(blobs_max) {}

  /// Null if it is not hot. Counts as a use.
  std::shared_ptr<const SealedMemory> find(const Digest& digest);
  /// Content larger than the whole budget is not taken.
  void insert(const Digest& digest, std::shared_ptr<const SealedMemory> content);
  void erase(const Digest& digest);
  uint64_t held_bytes() const;

 private:
  struct Entry {
    Digest digest;
    std::shared_ptr<const SealedMemory> content;
  };
  void drop(std::list<Entry>::iterator entry) KCORAL_REQUIRES(mutex_);

  const uint64_t bytes_max_;
  const size_t blobs_max_;
  mutable Mutex mutex_;
  std::list<Entry> by_use_ KCORAL_GUARDED_BY(mutex_);  // the last used first
  std::unordered_map<Digest, std::list<Entry>::iterator> by_digest_ KCORAL_GUARDED_BY(mutex_);
  uint64_t held_bytes_ KCORAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kcoral::store
