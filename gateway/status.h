// GET /requests/{id} and DELETE /requests/{id}: what has become of a request, now or once it has ended.
//
// Each lives on its connection's I/O thread. Whoever waits for the end of a request counts as its client: it is not
// abandoned meanwhile.
#pragma once

#include <chrono>

#include "gateway/abandonment.h"
#include "gateway/store_exchange.h"

namespace kcoral::gateway {

/// Answers with the status document at once if the request has ended; else when it does, or when `wait` is over.
class StatusExchange final : public StoreExchange {
 public:
  StatusExchange(store::Store& store, WaitingClients& waiting, Abandonment& abandonment, const Call& call,
                 const Uuid& request_id, std::chrono::microseconds wait)
      : StoreExchange(store, waiting, call), abandonment_(abandonment), request_id_(request_id), wait_(wait) {}
  ~StatusExchange() override;

  void on_body_end() override;

 private:
  void on_first_status(Result<store::RequestStatus> status);
  void on_end(Status ended);
  void ask_again();
  void on_last_status(Result<store::RequestStatus> status);

  Abandonment& abandonment_;
  const Uuid request_id_;
  const std::chrono::microseconds wait_;
  bool is_attending_ = false;
};

/// Cancels, and answers once the request has ended: with the status document if it is cancelled, whoever did it;
/// kConflict if it has ended otherwise.
class CancelExchange final : public StoreExchange {
 public:
  CancelExchange(store::Store& store, WaitingClients& waiting, const Call& call, const Uuid& request_id)
      : StoreExchange(store, waiting, call), request_id_(request_id) {}

  void on_body_end() override;
  void release() override;

 private:
  void on_cancelled(Result<schema::State> state);
  void on_end(Status ended);
  void on_status(Result<store::RequestStatus> status);

  const Uuid request_id_;
};

}  // namespace kcoral::gateway
