// What runs have said of themselves and is not in their rows yet.
//
// It promises: each note is taken once, those of a run in the order in which they came; what is put back comes before
// what came meanwhile. Thread-safe.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "store/store.h"

namespace kcoral::store {

/// Of one run.
struct RunNotes {
  std::optional<int> pid;  // it runs, as this process
  std::optional<std::vector<int>> gpu_ids;
  std::vector<AuditRecord> records;

  void append(RunNotes later);
  bool is_empty() const { return !pid && !gpu_ids && records.empty(); }
};

class PendingNotes {
 public:
  using ByRun = std::map<Fence, RunNotes>;

  /// True if all were taken since the last time, so that somebody has to take these.
  [[nodiscard]] bool add(const Fence& fence, RunNotes notes);
  /// True as above.
  [[nodiscard]] bool put_back(ByRun taken);

  // Appended to what was taken before.
  void take(const Fence& fence, RunNotes& taken);
  void take(const Uuid& request_id, ByRun& taken);
  void take_all(ByRun& taken);

 private:
  Mutex mutex_;
  ByRun pending_ KCORAL_GUARDED_BY(mutex_);
  bool is_awaited_ KCORAL_GUARDED_BY(mutex_) = false;  // somebody will take all
};

}  // namespace kcoral::store
