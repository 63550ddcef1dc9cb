// One side of a frame socket on an EventLoop: queues what it sends, so that a peer who does not read blocks nobody.
//
// A FrameChannel belongs to its loop's thread. Destroying it closes the socket and drops what was not sent; its
// handlers may destroy it. Frames arrive in order; at most a bounded number in a row, so that others on the loop get
// their turn.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/memfd.h"
#include "base/unique_fd.h"
#include "executor/frame.h"

namespace kcoral::executor {

/// A descriptor on its way out, with what keeps it open until it is sent.
class OutgoingFd {
 public:
  OutgoingFd(UniqueFd fd) : OutgoingFd(std::make_shared<UniqueFd>(std::move(fd))) {}  // NOLINT: meant to convert
  OutgoingFd(std::shared_ptr<const SealedMemory> memory)                              // NOLINT: meant to convert
      : fd_(memory->fd()), owner_(std::move(memory)) {}

  int get() const { return fd_; }

 private:
  explicit OutgoingFd(std::shared_ptr<UniqueFd> fd) : fd_(fd->get()), owner_(std::move(fd)) {}

  int fd_;
  std::shared_ptr<const void> owner_;
};

class FrameChannel {
 public:
  struct Handlers {
    std::function<void(Frame frame)> on_frame;
    /// The peer closed or died (everything that it sent came before), or sent what is no frame (then with an error).
    /// Called at most once; nothing follows it.
    std::function<void(std::optional<Error> error)> on_closed;
  };

  static Result<std::unique_ptr<FrameChannel>> create(EventLoop& loop, UniqueFd socket, Handlers handlers);
  ~FrameChannel();
  FrameChannel(const FrameChannel&) = delete;
  FrameChannel& operator=(const FrameChannel&) = delete;

  /// Sends in order, as soon as the peer reads. A peer that is gone is not an error here: on_closed tells.
  /// Requires: the frame fits limits::kFrameBytesMax and kFrameFdsMax.
  void send(const nlohmann::json& body, std::vector<OutgoingFd> fds = {});
  size_t queued_frames() const { return queue_.size(); }

  /// Sends what is queued before it returns; gives up after `wait_max`.
  void finish_sending(std::chrono::milliseconds wait_max);

  /// Handles every frame that has arrived, now; not without end what a peer goes on sending meanwhile. Returns false if
  /// a handler destroyed the channel.
  bool receive_all();

 private:
  struct Outgoing {
    std::string packet;
    std::vector<OutgoingFd> fds;
  };

  FrameChannel(EventLoop& loop, UniqueFd socket, Handlers handlers);
  Status watch(uint32_t events);
  void on_ready(uint32_t events);
  bool receive(size_t frames_max);
  void close(std::optional<Error> error);
  void flush();
  void watch_writable(bool wanted);

  EventLoop& loop_;
  UniqueFd socket_;
  Handlers handlers_;
  std::deque<Outgoing> queue_;
  bool watching_writable_ = false;
  bool peer_takes_frames_ = true;
  bool closed_ = false;
  std::optional<EventLoop::TimerId> retry_timer_;
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);  // expires with the channel
};

}  // namespace kcoral::executor
