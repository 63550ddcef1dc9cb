// Who still waits for which request, and the end of what nobody waits for any more.
//
// It promises: a request whose client went away before its answer is cancelled (CancelBy::kNobody: the store spares
// what is polled) once nobody has waited for it for a while, and not before; after `stop` none is. How many clients
// wait for one request, and how often they come and go, makes no difference to what is kept of it.
//
// Thread-safe; it outlives the I/O threads that it gets.
#pragma once

#include <chrono>
#include <optional>
#include <unordered_map>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/uuid.h"
#include "gateway/io_thread.h"
#include "store/store.h"

namespace kcoral::gateway {

class Abandonment {
 public:
  /// `after`: how long nobody may have waited; nullopt: for ever.
  Abandonment(std::optional<std::chrono::milliseconds> after, store::Store& store) : after_(after), store_(store) {}

  /// A client waits for it from now on, or comes to, until exactly one of the other two is called.
  void arrive(const Uuid& request_id);
  /// It was answered, or never came to wait.
  void leave(const Uuid& request_id, SteadyTime now);
  /// It went away without an answer. Requires: called on that I/O thread.
  void leave_unanswered(const Uuid& request_id, IoThread& io);

  /// The server stops: what it has is kept for the next one.
  void stop();

 private:
  struct Attendance {
    size_t waiting = 0;
    SteadyTime left_at{};     // when the last one left
    bool is_checked = false;  // a timer runs, which alone forgets this
  };

  void check_at(SteadyTime when, const Uuid& request_id, IoThread& io);
  void check(const Uuid& request_id, IoThread& io);
  /// When to look again; nullopt if nobody has waited for long enough, which is forgotten then.
  std::optional<SteadyTime> next_check(const Uuid& request_id, SteadyTime now);

  const std::optional<std::chrono::milliseconds> after_;
  store::Store& store_;
  Mutex mutex_;
  bool stopped_ KCORAL_GUARDED_BY(mutex_) = false;
  std::unordered_map<Uuid, Attendance> requests_ KCORAL_GUARDED_BY(mutex_);
};

}  // namespace kcoral::gateway
