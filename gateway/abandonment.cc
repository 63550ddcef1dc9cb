#include "gateway/abandonment.h"

namespace kcoral::gateway {

void Abandonment::arrive(const Uuid& request_id) {
  const MutexLock lock(mutex_);
  ++requests_[request_id].waiting;
}

void Abandonment::leave(const Uuid& request_id, SteadyTime now) {
  const MutexLock lock(mutex_);
  const auto found = requests_.find(request_id);
  KCORAL_CHECK(found != requests_.end() && found->second.waiting > 0);
  Attendance& attendance = found->second;
  attendance.left_at = now;
  if (--attendance.waiting == 0 && !attendance.is_checked) requests_.erase(found);
}

void Abandonment::leave_unanswered(const Uuid& request_id, IoThread& io) {
  const SteadyTime now = io.clock.now();
  if (!after_) return leave(request_id, now);
  {
    const MutexLock lock(mutex_);
    const auto found = requests_.find(request_id);
    KCORAL_CHECK(found != requests_.end() && found->second.waiting > 0);
    Attendance& attendance = found->second;
    --attendance.waiting;
    attendance.left_at = now;
    if (std::exchange(attendance.is_checked, true)) return;
  }
  check_at(now + *after_, request_id, io);
}

void Abandonment::stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
}

void Abandonment::check_at(SteadyTime when, const Uuid& request_id, IoThread& io) {
  io.timers.add(when, [this, request_id, &io] { check(request_id, io); });
}

void Abandonment::check(const Uuid& request_id, IoThread& io) {
  if (const auto next = next_check(request_id, io.clock.now())) return check_at(*next, request_id, io);
  {
    const MutexLock lock(mutex_);
    if (stopped_) return;
  }
  // Whatever the store says, nobody is there to hear it: most requests have ended by then.
  store_.cancel(request_id, store::CancelBy::kNobody, [](const Result<schema::State>&) {});
}

std::optional<SteadyTime> Abandonment::next_check(const Uuid& request_id, SteadyTime now) {
  const MutexLock lock(mutex_);
  const auto found = requests_.find(request_id);
  KCORAL_CHECK(found != requests_.end());
  const Attendance& attendance = found->second;
  if (attendance.waiting > 0) return now + *after_;
  if (attendance.left_at + *after_ > now) return attendance.left_at + *after_;
  requests_.erase(found);
  return std::nullopt;
}

}  // namespace kcoral::gateway
