// What running programs have printed so far, in memory that their executors go on appending to.
//
// It promises: what was read while a run lasts is a beginning of what is read later. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "store/lookups.h"
#include "store/store.h"

namespace kcoral::store {

/// Decoded output by stream. A stream to which nothing was printed is not there.
using CapturedOutput = std::map<OutputStream, std::string>;

class LiveOutputs {
 public:
  /// What an earlier attempt had printed is forgotten.
  void note(const Fence& fence, OutputStream stream, std::shared_ptr<const UniqueFd> memory);
  void forget(const Uuid& request_id);
  bool has(const Uuid& request_id) const;

  /// So far; without a character that is not complete yet. Blocks a little: some MiB are copied.
  Result<std::string> read(const Uuid& request_id, OutputStream stream) const;
  /// All of it, of a run that is over.
  Result<CapturedOutput> read_all(const Uuid& request_id) const;

 private:
  struct Run {
    int attempt = 0;
    std::map<OutputStream, std::shared_ptr<const UniqueFd>> memory;
  };
  Run run_of(const Uuid& request_id) const;

  mutable Mutex mutex_;
  std::unordered_map<Uuid, Run> runs_ KCORAL_GUARDED_BY(mutex_);
};

}  // namespace kcoral::store
