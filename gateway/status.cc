#include "gateway/status.h"

#include "base/failpoint.h"
#include "gateway/status_document.h"

namespace kcoral::gateway {

StatusExchange::~StatusExchange() {
  if (is_attending_) abandonment_.leave(request_id_, io().clock.now());
}

void StatusExchange::on_body_end() { store().status(request_id_, posted(&StatusExchange::on_first_status)); }

void StatusExchange::on_first_status(Result<store::RequestStatus> status) {
  const bool is_over = !status || schema::is_terminal(status->state) || wait_ == wait_.zero();
  if (is_over || !begin_waiting()) return on_last_status(std::move(status));
  abandonment_.arrive(request_id_);
  is_attending_ = true;
  after(wait_, [this] { ask_again(); });
  await_end(request_id_, &StatusExchange::on_end);
}

void StatusExchange::on_end(Status ended) {
  if (!ended) return answer(ended.error());
  ask_again();
}

void StatusExchange::ask_again() {
  stop_waiting();
  store().status(request_id_, posted(&StatusExchange::on_last_status));
}

void StatusExchange::on_last_status(Result<store::RequestStatus> status) {
  if (!status) return answer(status.error());
  respond(status_response(call_id(), *status));
}

void CancelExchange::on_body_end() {
  store().cancel(request_id_, store::CancelBy::kClient, posted(&CancelExchange::on_cancelled));
}

void CancelExchange::on_cancelled(Result<schema::State> state) {
  if (!state) return answer(state.error());
  if (schema::is_terminal(*state)) return on_end({});
  if (!begin_waiting()) return release();
  await_end(request_id_, &CancelExchange::on_end);
}

void CancelExchange::on_end(Status ended) {
  if (!ended) return answer(ended.error());
  store().status(request_id_, posted(&CancelExchange::on_status));
}

void CancelExchange::on_status(Result<store::RequestStatus> status) {
  if (!status) return answer(status.error());
  failpoint("gateway.cancel.answering");
  if (status->state == schema::State::kCancelled) return respond(status_response(call_id(), *status));
  answer({ErrorKind::kConflict,
          fmt::format("the request ended as {} before it could be cancelled", schema::wire_name(status->state))});
}

void CancelExchange::release() {
  answer({ErrorKind::kBusy, "the server is stopping; that the request is to be cancelled is recorded"});
}

}  // namespace kcoral::gateway
