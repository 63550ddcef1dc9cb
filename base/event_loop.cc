#include "base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <limits>

namespace kcoral {

Result<std::unique_ptr<EventLoop>> EventLoop::create(Clock& clock) {
  std::unique_ptr<EventLoop> loop(new EventLoop(clock));
  loop->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!loop->epoll_) return fail_errno("epoll_create1");
  loop->wakeup_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!loop->wakeup_) return fail_errno("eventfd");
  const int wakeup = loop->wakeup_.get();
  auto watched = loop->watch(wakeup, EPOLLIN, [wakeup](uint32_t) {
    eventfd_t count;
    ::eventfd_read(wakeup, &count);
  });
  if (!watched) return fail(watched.error());
  return loop;
}

Status EventLoop::watch(int fd, uint32_t events, FdCallback callback) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return fail_errno("epoll_ctl");
  watched_[fd] = std::make_shared<FdCallback>(std::move(callback));
  return {};
}

void EventLoop::unwatch(int fd) {
  if (watched_.erase(fd) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::run_at(SteadyTime when, Callback callback) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair(when, id), std::move(callback));
  timer_times_.emplace(id, when);
  return id;
}

void EventLoop::cancel(TimerId timer) {
  const auto found = timer_times_.find(timer);
  if (found == timer_times_.end()) return;
  timers_.erase({found->second, timer});
  timer_times_.erase(found);
}

void EventLoop::post(Callback callback) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(callback));
  }
  ::eventfd_write(wakeup_.get(), 1);
}

void EventLoop::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ::eventfd_write(wakeup_.get(), 1);
}

void EventLoop::run() {
  std::array<epoll_event, 64> ready;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    const int count = ::epoll_wait(epoll_.get(), ready.data(), ready.size(), next_timeout_ms());
    KCORAL_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      // Looked up anew each time: an earlier callback of this round may have removed it.
      const auto found = watched_.find(ready[static_cast<size_t>(i)].data.fd);
      if (found == watched_.end()) continue;
      const std::shared_ptr<FdCallback> callback = found->second;
      (*callback)(ready[static_cast<size_t>(i)].events);
    }
    run_posted();
    run_due_timers();
  }
}

int EventLoop::next_timeout_ms() const {
  if (timers_.empty()) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - clock_.now());
  return static_cast<int>(std::clamp<int64_t>(wait.count(), 0, std::numeric_limits<int>::max()));
}

void EventLoop::run_due_timers() {
  const SteadyTime now = clock_.now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

void EventLoop::run_posted() {
  std::vector<Callback> batch;
  {
    const std::lock_guard lock(mutex_);
    batch.swap(posted_);
  }
  for (Callback& callback : batch) callback();
}

}  // namespace kcoral
