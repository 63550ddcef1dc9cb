// GET /requests/{id}/result and GET /requests/{id}/artifacts/{key}: what a request has ended with, whole or one
// returned value of it. Until it has ended both are 409 with the status document.
//
// Content goes out as it lies in sealed memory. Lives on its connection's I/O thread.
#pragma once

#include <functional>

#include "gateway/store_exchange.h"

namespace kcoral::gateway {

class OutcomeExchange final : public StoreExchange {
 public:
  using Render = std::function<Result<Response>(const Uuid& call_id, const store::RequestStatus& status, AnswerPtr)>;

  OutcomeExchange(store::Store& store, WaitingClients& waiting, const Call& call, const Uuid& request_id, Render render)
      : StoreExchange(store, waiting, call), request_id_(request_id), render_(std::move(render)) {}

  void on_body_end() override;

 private:
  void on_status(Result<store::RequestStatus> status);
  void on_answer(Result<AnswerPtr> outcome);

  const Uuid request_id_;
  const Render render_;
  store::RequestStatus status_;
};

/// The answer as it was given to whoever waited for it.
Result<Response> render_result(const Uuid& call_id, const store::RequestStatus& status,
                               std::shared_ptr<const schema::Answer> answer);

/// One value of it: raw bytes for bytes, a file and a tensor; a tar for a folder, whose files have the time at which
/// the request ended; for the rest the value's JSON as the answer has it. kNotFound if nothing was returned as `key`.
Result<Response> render_artifact(const Uuid& call_id, const store::RequestStatus& status,
                                 std::shared_ptr<const schema::Answer> answer, std::string_view key);

}  // namespace kcoral::gateway
