// What a connection needs of the thread that it lives on: a mailbox, timers, a buffer to read into.
//
// Mailbox is thread-safe and may outlive its thread; everything else belongs to the I/O thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/timer_queue.h"
#include "base/unique_fd.h"
#include "schema/limits.h"

namespace kcoral::gateway {

/// Functions from other threads for an I/O thread to run, in the order of posting. They address objects by weak
/// pointer, never by descriptor: a descriptor's number soon belongs to somebody else.
class Mailbox {
 public:
  using Letter = std::function<void()>;

  static Result<std::shared_ptr<Mailbox>> create();

  void post(Letter letter);
  /// Letters that were not read, and those that still come, are dropped.
  void close();

  /// Readable while letters wait.
  int wakeup_fd() const { return wakeup_.get(); }
  /// Runs what waits now. Only on the I/O thread.
  void deliver();

 private:
  explicit Mailbox(UniqueFd wakeup) : wakeup_(std::move(wakeup)) {}

  const UniqueFd wakeup_;
  Mutex mutex_;
  std::vector<Letter> letters_ KCORAL_GUARDED_BY(mutex_);
  bool closed_ KCORAL_GUARDED_BY(mutex_) = false;
};

/// One socket's owner on an I/O thread.
class SocketOwner {
 public:
  virtual ~SocketOwner() = default;
  /// Edge-triggered: each flag says that something changed. `hangup`: the peer is gone in both directions.
  virtual void on_ready(bool readable, bool writable, bool hangup) = 0;
  /// The server stops: close now, or as soon as the answer being sent is sent.
  virtual void stop() = 0;
};

struct IoThread {
  IoThread(Clock& clock_in, std::shared_ptr<Mailbox> mailbox_in)
      : clock(clock_in), mailbox(std::move(mailbox_in)), read_buffer(limits::kReadBytes) {}

  /// The socket is closed and its owner released once the current round of events is over, so that no event of this
  /// round can reach a new connection that got the same descriptor.
  void close_later(int fd) { closing.push_back(fd); }

  Clock& clock;
  std::shared_ptr<Mailbox> mailbox;
  TimerQueue timers;
  std::vector<char> read_buffer;  // shared by the thread's connections, one at a time
  std::vector<int> closing;
};

}  // namespace kcoral::gateway
