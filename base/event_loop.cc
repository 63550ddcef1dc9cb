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
  const uint64_t watch = next_watch_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return fail_errno("epoll_ctl");
  watches_[watch] = std::make_shared<FdCallback>(std::move(callback));
  watch_of_fd_[fd] = watch;
  return {};
}

void EventLoop::unwatch(int fd) {
  const auto found = watch_of_fd_.find(fd);
  if (found == watch_of_fd_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  watches_.erase(found->second);
  watch_of_fd_.erase(found);
}

void EventLoop::post(Callback callback) {
  {
    const MutexLock lock(mutex_);
    posted_.push_back(std::move(callback));
  }
  ::eventfd_write(wakeup_.get(), 1);
}

void EventLoop::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  ::eventfd_write(wakeup_.get(), 1);
}

void EventLoop::run() {
  std::array<epoll_event, 64> ready;
  for (;;) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const int count = ::epoll_wait(epoll_.get(), ready.data(), ready.size(), next_timeout_ms());
    KCORAL_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      // Looked up anew each time: an earlier callback of this round may have removed it.
      const auto found = watches_.find(ready[static_cast<size_t>(i)].data.u64);
      if (found == watches_.end()) continue;
      const std::shared_ptr<FdCallback> callback = found->second;
      (*callback)(ready[static_cast<size_t>(i)].events);
    }
    run_posted();
    timers_.run_due(clock_.now());
  }
}

int EventLoop::next_timeout_ms() const {
  const auto next = timers_.next();
  if (!next) return -1;
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*next - clock_.now());
  return static_cast<int>(std::clamp<int64_t>(wait.count(), 0, std::numeric_limits<int>::max()));
}

void EventLoop::run_posted() {
  std::vector<Callback> batch;
  {
    const MutexLock lock(mutex_);
    batch.swap(posted_);
  }
  for (Callback& callback : batch) callback();
}

}  // namespace kcoral
