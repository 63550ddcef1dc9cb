// An exchange that asks the store: what it takes to ask without waiting on the I/O thread, and to wait for the end of a
// request in such a way that a stopping server can say so.
//
// It promises: the store's threads only ever post to the I/O thread's mailbox, holding a weak pointer; what they bring
// for a client that is gone or answered is dropped; the client is answered once.
//
// Lives on its connection's I/O thread. The store and the waiting clients outlive it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "gateway/connection.h"
#include "gateway/http_types.h"
#include "gateway/waiting_clients.h"
#include "store/store.h"

namespace kcoral::gateway {

class StoreExchange : public Exchange, public WaitingClient, public std::enable_shared_from_this<StoreExchange> {
 public:
  using AnswerPtr = store::Store::AnswerPtr;

  ~StoreExchange() override { stop_waiting(); }

  /// What was sent as the body of a GET or DELETE is of no interest.
  void on_body(std::string_view) override {}
  void release() override { answer({ErrorKind::kBusy, "the server is stopping; ask again once it is back"}); }

 protected:
  StoreExchange(store::Store& store, WaitingClients& waiting, const Call& call)
      : store_(store), waiting_(waiting), call_id_(call.id), io_(call.io), sink_(call.sink) {}

  store::Store& store() const { return store_; }
  /// Echoed on the answer.
  const Uuid& call_id() const { return call_id_; }
  IoThread& io() const { return io_; }
  bool is_answered() const { return is_answered_; }

  /// A callback for the store's threads that runs `then` on the I/O thread, if that is still of interest by then.
  template <typename Self, typename T>
  std::function<void(T)> posted(void (Self::*then)(T)) {
    return [weak = weak_from_this(), mailbox = io_.mailbox, then](T value) {
      // Letters are copyable functions, so the value travels behind a pointer.
      mailbox->post([weak, then, shared = std::make_shared<T>(std::move(value))] {
        const auto self = weak.lock();
        if (self && !self->is_answered_) (static_cast<Self*>(self.get())->*then)(std::move(*shared));
      });
    };
  }

  /// From here to the answer a stopping server calls `release`. False if it does so already, with nothing done.
  bool begin_waiting() {
    is_waiting_ = waiting_.enter(shared_from_this(), io_.mailbox);
    return is_waiting_;
  }
  /// Requires: waiting, and not waiting for another end or answer.
  template <typename Self>
  void await_answer(const Uuid& request_id, void (Self::*then)(Result<AnswerPtr>)) {
    watch_ = store_.watch(request_id, posted(then));
  }
  template <typename Self>
  void await_end(const Uuid& request_id, void (Self::*then)(Status)) {
    watch_ = store_.watch_end(request_id, posted(then));
  }
  /// `then` runs once that time has passed, unless the waiting is over before. Requires: called once.
  void after(std::chrono::nanoseconds delay, std::function<void()> then) {
    timer_ = io_.timers.add(io_.clock.now() + delay, std::move(then));
  }
  void stop_waiting() {
    if (timer_) io_.timers.cancel(*std::exchange(timer_, std::nullopt));
    if (std::exchange(is_waiting_, false)) waiting_.leave(this);
    // Waits for a callback that is running; that one only posts, and no lock of ours is held here.
    if (watch_) store_.unwatch(*std::exchange(watch_, std::nullopt));
  }

  /// The exchange may be gone when it returns.
  void respond(Response response) {
    if (std::exchange(is_answered_, true)) return;
    stop_waiting();
    sink_.respond(std::move(response));
  }
  void answer(const Error& error) { respond(error_response(call_id_, error)); }

 private:
  store::Store& store_;
  WaitingClients& waiting_;
  const Uuid call_id_;
  IoThread& io_;
  ResponseSink& sink_;

  bool is_answered_ = false;
  bool is_waiting_ = false;
  std::optional<store::Store::WatchId> watch_;
  std::optional<TimerQueue::Id> timer_;
};

}  // namespace kcoral::gateway
