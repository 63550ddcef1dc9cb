#include "base/timer_queue.h"

namespace kcoral {

TimerQueue::Id TimerQueue::add(SteadyTime when, std::function<void()> callback) {
  const Id id = next_id_++;
  timers_.emplace(std::pair(when, id), std::move(callback));
  times_.emplace(id, when);
  return id;
}

void TimerQueue::cancel(Id id) {
  const auto found = times_.find(id);
  if (found == times_.end()) return;
  timers_.erase({found->second, id});
  times_.erase(found);
}

std::optional<SteadyTime> TimerQueue::next() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first.first;
}

void TimerQueue::run_due(SteadyTime now) {
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    times_.erase(node.key().second);
    node.mapped()();
  }
}

}  // namespace kcoral
