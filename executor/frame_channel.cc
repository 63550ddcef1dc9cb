#include "executor/frame_channel.h"

#include <poll.h>
#include <sys/epoll.h>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

constexpr auto kRetryPause = std::chrono::milliseconds(5);

}  // namespace

Result<std::unique_ptr<FrameChannel>> FrameChannel::create(EventLoop& loop, UniqueFd socket, Handlers handlers) {
  std::unique_ptr<FrameChannel> channel(new FrameChannel(loop, std::move(socket), std::move(handlers)));
  if (auto watched = channel->watch(EPOLLIN); !watched) return fail(watched.error());
  return channel;
}

FrameChannel::FrameChannel(EventLoop& loop, UniqueFd socket, Handlers handlers)
    : loop_(loop), socket_(std::move(socket)), handlers_(std::move(handlers)) {}

FrameChannel::~FrameChannel() {
  if (!closed_) loop_.unwatch(socket_.get());
  if (retry_timer_) loop_.cancel(*retry_timer_);
}

Status FrameChannel::watch(uint32_t events) {
  return loop_.watch(socket_.get(), events, [this](uint32_t ready) { on_ready(ready); });
}

void FrameChannel::on_ready(uint32_t events) {
  const std::weak_ptr<const bool> alive = alive_;
  if ((events & EPOLLOUT) != 0) flush();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !alive.expired()) receive(limits::kFramesPerTurn);
}

bool FrameChannel::receive_all() { return receive(limits::kFramesArrivedMax); }

bool FrameChannel::receive(size_t frames_max) {
  const std::weak_ptr<const bool> alive = alive_;
  for (size_t i = 0; i < frames_max && !closed_; ++i) {
    Frame frame;
    auto received = receive_frame(socket_.get(), frame);
    if (!received) {
      close(received.error());
      return !alive.expired();
    }
    if (*received == Received::kNothing) return true;
    if (*received == Received::kClosed) {
      close(std::nullopt);
      return !alive.expired();
    }
    // A copy: the handler may destroy the channel, and itself with it.
    const auto on_frame = handlers_.on_frame;
    on_frame(std::move(frame));
    if (alive.expired()) return false;
  }
  return true;
}

void FrameChannel::close(std::optional<Error> error) {
  closed_ = true;
  loop_.unwatch(socket_.get());
  queue_.clear();
  const auto on_closed = handlers_.on_closed;
  on_closed(std::move(error));
}

void FrameChannel::send(const nlohmann::json& body, std::vector<OutgoingFd> fds) {
  auto packet = render_frame(body);
  KCORAL_CHECK(packet.has_value());
  if (closed_ || !peer_takes_frames_) return;
  queue_.push_back({std::move(*packet), std::move(fds)});
  if (queue_.size() == 1) flush();
}

void FrameChannel::flush() {
  Sent last = Sent::kSent;
  while (!queue_.empty() && last == Sent::kSent) {
    std::vector<int> fds;
    for (const OutgoingFd& fd : queue_.front().fds) fds.push_back(fd.get());
    const auto sent = try_send_packet(socket_.get(), queue_.front().packet, fds);
    if (!sent) {
      // Reading goes on: what the peer had said before it died is still there, and on_closed comes after it.
      peer_takes_frames_ = false;
      queue_.clear();
    } else {
      last = *sent;
      if (last == Sent::kSent) queue_.pop_front();
    }
  }
  watch_writable(last == Sent::kFull);
  if (last == Sent::kTooManyInFlight && !retry_timer_) {
    retry_timer_ = loop_.run_after(kRetryPause, [this] {
      retry_timer_.reset();
      flush();
    });
  }
}

void FrameChannel::finish_sending(std::chrono::milliseconds wait_max) {
  const SteadyTime end = Clock::system().now() + wait_max;
  while (!queue_.empty() && Clock::system().now() < end) {
    pollfd writable{socket_.get(), POLLOUT, 0};
    ::poll(&writable, 1, static_cast<int>(kRetryPause.count()));
    flush();
  }
}

void FrameChannel::watch_writable(bool wanted) {
  if (closed_ || watching_writable_ == wanted) return;
  watching_writable_ = wanted;
  loop_.unwatch(socket_.get());
  KCORAL_CHECK(watch(wanted ? EPOLLIN | EPOLLOUT : EPOLLIN).has_value());
}

}  // namespace kcoral::executor
