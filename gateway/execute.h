// POST /execute: a submission on its way to the store, and its client's wait for the answer.
//
// Once admitted, a request is the store's: a client that goes away only stops waiting for it. The limit on the wait for
// a worker is the waiting client's: when it passes, the request is rejected if it is still queued (the store decides
// which came first), and the rejection comes back as the answer like any other.
//
// ExecuteService is thread-safe and outlives its exchanges; an exchange lives on its connection's I/O thread. The
// store's threads only ever post to that thread's mailbox, holding a weak pointer to the exchange.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "gateway/body_budget.h"
#include "gateway/connection.h"
#include "schema/program.h"
#include "store/store.h"

namespace kcoral::gateway {

class ExecuteExchange;

struct ExecuteConfig {
  std::chrono::milliseconds worker_wait = limits::kWorkerWait;
  schema::ProgramBounds bounds;
};

class ExecuteService {
 public:
  /// `budget` is what programs may hold until the store has taken them over.
  ExecuteService(ExecuteConfig config, std::shared_ptr<BodyBudget> budget, store::Store& store)
      : config_(std::move(config)), budget_(std::move(budget)), store_(store) {}

  /// As Dispatcher::open. Requires: the framing bounds the body.
  std::shared_ptr<Exchange> open(const RequestHead& head, const Uuid& request_id, const PeerAddress& peer, IoThread& io,
                                 ResponseSink& sink);

  /// From here on programs are answered 503 busy instead of being admitted.
  void stop_admitting();
  /// Answers every client that waits, or comes to wait, for a request already admitted: 503 busy, ask again.
  void release_waiting();

 private:
  friend class ExecuteExchange;

  bool admits() const;
  /// False if clients are being released: then the exchange must answer itself.
  bool register_waiting(const std::shared_ptr<ExecuteExchange>& exchange, std::shared_ptr<Mailbox> mailbox);
  void unregister_waiting(const ExecuteExchange* exchange);

  struct Waiting {
    std::weak_ptr<ExecuteExchange> exchange;
    std::shared_ptr<Mailbox> mailbox;
  };

  const ExecuteConfig config_;
  const std::shared_ptr<BodyBudget> budget_;  // shared with admissions under way, which the store may end later
  store::Store& store_;
  mutable Mutex mutex_;
  bool admits_ KCORAL_GUARDED_BY(mutex_) = true;
  bool releasing_ KCORAL_GUARDED_BY(mutex_) = false;
  std::unordered_map<const ExecuteExchange*, Waiting> waiting_ KCORAL_GUARDED_BY(mutex_);
};

}  // namespace kcoral::gateway
