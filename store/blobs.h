// Blobs as requests use them: on disk by digest, and hot in memory while they are wanted often.
//
// It promises: what `load` returns has the digest it was asked for; what `keep` has taken is durable after the next
// sync of the content. Thread-safe; blocks on the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/metrics.h"
#include "store/blob_cache.h"
#include "store/content.h"
#include "store/store.h"

namespace kcoral::store {

class Blobs {
 public:
  Blobs(Content& content, uint64_t cache_bytes_max);

  Status keep(const StagedBlob& blob);
  /// nullopt if it is not held.
  Result<std::optional<uint64_t>> size_bytes(const Digest& digest);
  /// kNotFound if it is not held (any more).
  Result<std::shared_ptr<const SealedMemory>> load(const Digest& digest);

  /// What `keep` and `load` did, and what is hot.
  void add_to(Figures& figures) const;

 private:
  Content& content_;
  BlobCache cache_;
  Counter hits_;  // of what was to be loaded
  Counter misses_;
  Counter received_;
  Counter received_bytes_;
};

}  // namespace kcoral::store
