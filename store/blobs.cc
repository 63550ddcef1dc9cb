#include "store/blobs.h"

#include <sys/resource.h>

#include <algorithm>

#include "schema/limits.h"

namespace kcoral::store {
namespace {

// The rest of the process's descriptors is for connections, executors and content in use.
size_t hot_blobs_max() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<size_t>(limits::kBlobsMax, limit.rlim_cur / 4);
}

}  // namespace

Blobs::Blobs(Content& content, uint64_t cache_bytes_max)
    : content_(content), cache_(cache_bytes_max, hot_blobs_max()) {}

Status Blobs::keep(const StagedBlob& blob) {
  auto bytes = blob.content->view();
  if (!bytes) return fail(bytes.error());
  if (auto stored = content_.put_blob(blob.sha256, *bytes); !stored) return stored;
  cache_.insert(blob.sha256, blob.content);
  received_.add();
  received_bytes_.add(bytes->size());
  return {};
}

Result<std::optional<uint64_t>> Blobs::size_bytes(const Digest& digest) {
  if (const auto hot = cache_.find(digest)) return std::optional<uint64_t>(hot->size_bytes());
  return content_.blob_bytes(digest);
}

Result<std::shared_ptr<const SealedMemory>> Blobs::load(const Digest& digest) {
  if (auto hot = cache_.find(digest)) {
    hits_.add();
    return hot;
  }
  misses_.add();
  auto loaded = content_.load_blob(digest);
  if (!loaded) {
    // Whatever was put in meanwhile rests on the copy that turned out to be damaged.
    if (loaded.error().kind == ErrorKind::kNotFound) cache_.erase(digest);
    return loaded;
  }
  cache_.insert(digest, *loaded);
  return loaded;
}

void Blobs::add_to(Figures& figures) const {
  figures.blob_cache_hits = hits_.value();
  figures.blob_cache_misses = misses_.value();
  figures.blob_cache_bytes = cache_.held_bytes();
  figures.blobs_received = received_.value();
  figures.blob_bytes_received = received_bytes_.value();
}

}  // namespace kcoral::store
