#include "store/pending_notes.h"

#include <iterator>
#include <utility>

namespace kcoral::store {

void RunNotes::append(RunNotes later) {
  if (later.pid) pid = later.pid;
  if (later.gpu_ids) gpu_ids = std::move(later.gpu_ids);
  std::move(later.records.begin(), later.records.end(), std::back_inserter(records));
}

bool PendingNotes::add(const Fence& fence, RunNotes notes) {
  const MutexLock lock(mutex_);
  pending_[fence].append(std::move(notes));
  return !std::exchange(is_awaited_, true);
}

bool PendingNotes::put_back(ByRun taken) {
  std::erase_if(taken, [](const auto& of_run) { return of_run.second.is_empty(); });
  if (taken.empty()) return false;
  const MutexLock lock(mutex_);
  for (auto& [fence, notes] : taken) {
    RunNotes& pending = pending_[fence];
    notes.append(std::exchange(pending, {}));
    pending = std::move(notes);
  }
  return !std::exchange(is_awaited_, true);
}

void PendingNotes::take(const Fence& fence, RunNotes& taken) {
  const MutexLock lock(mutex_);
  auto found = pending_.extract(fence);
  if (!found.empty()) taken.append(std::move(found.mapped()));
}

void PendingNotes::take(const Uuid& request_id, ByRun& taken) {
  const MutexLock lock(mutex_);
  auto next = pending_.lower_bound(Fence{request_id, 0});
  while (next != pending_.end() && next->first.request_id == request_id) {
    taken[next->first].append(std::move(next->second));
    next = pending_.erase(next);
  }
}

void PendingNotes::take_all(ByRun& taken) {
  const MutexLock lock(mutex_);
  is_awaited_ = false;
  for (auto& [fence, notes] : std::exchange(pending_, {})) taken[fence].append(std::move(notes));
}

}  // namespace kcoral::store
