#include "gateway/execute.h"

#include "base/failpoint.h"

namespace kcoral::gateway {

void ExecuteExchange::on_admitted(store::Admission) {
  if (!begin_waiting()) return release();
  after(service().config().worker_wait, [this] { on_worker_wait_passed(); });
  await_answer(call_id(), &ExecuteExchange::on_outcome);
}

void ExecuteExchange::on_outcome(Result<AnswerPtr> outcome) {
  if (!outcome) return answer(outcome.error());
  failpoint("gateway.outcome.answering");
  respond(answer_response(call_id(), std::move(*outcome)));
}

void ExecuteExchange::on_worker_wait_passed() {
  const std::chrono::duration<double> waited = service().config().worker_wait;
  Error busy{ErrorKind::kBusy,
             fmt::format("no worker became free within {} seconds; nothing ran. Send the program again "
                         "under a fresh X-Request-ID",
                         waited.count())};
  auto rejection =
      std::make_shared<const schema::Answer>(schema::make_error_answer(call_id(), busy, limits::kRetryAfterSeconds));
  store().reject_if_queued(call_id(), std::move(rejection), std::move(busy.message));
}

/// The request stays.
void ExecuteExchange::release() {
  answer({ErrorKind::kBusy,
          "the server is stopping before this request has an outcome; the request is kept and can be asked for again "
          "with the same X-Request-ID and the same program"});
}

}  // namespace kcoral::gateway
