#include "store/blob_cache.h"

#include <utility>

namespace kcoral::store {

std::shared_ptr<const SealedMemory> BlobCache::find(const Digest& digest) {
  const MutexLock lock(mutex_);
  const auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) return nullptr;
  by_use_.splice(by_use_.begin(), by_use_, found->second);
  return found->second->content;
}

void BlobCache::insert(const Digest& digest, std::shared_ptr<const SealedMemory> content) {
  const uint64_t bytes = content->size_bytes();
  if (bytes > bytes_max_ || blobs_max_ == 0) return;
  const MutexLock lock(mutex_);
  if (by_digest_.contains(digest)) return;
  while (held_bytes_ + bytes > bytes_max_ || by_use_.size() >= blobs_max_) drop(std::prev(by_use_.end()));
  by_use_.push_front({digest, std::move(content)});
  by_digest_.emplace(digest, by_use_.begin());
  held_bytes_ += bytes;
}

void BlobCache::erase(const Digest& digest) {
  const MutexLock lock(mutex_);
  const auto found = by_digest_.find(digest);
  if (found != by_digest_.end()) drop(found->second);
}

uint64_t BlobCache::held_bytes() const {
  const MutexLock lock(mutex_);
  return held_bytes_;
}

void BlobCache::drop(std::list<Entry>::iterator entry) {
  held_bytes_ -= entry->content->size_bytes();
  by_digest_.erase(entry->digest);
  by_use_.erase(entry);
}

}  // namespace kcoral::store
