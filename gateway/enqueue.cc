#include "gateway/enqueue.h"

#include "base/failpoint.h"
#include "gateway/status_document.h"

namespace kcoral::gateway {

void EnqueueExchange::on_admitted(store::Admission admission) {
  if (admission.status) return on_status(std::move(*admission.status));
  store().status(call_id(), posted(&EnqueueExchange::on_status));
}

void EnqueueExchange::on_status(Result<store::RequestStatus> status) {
  if (!status) return answer(status.error());
  Response response = status_response(call_id(), *status, 202);
  response.headers.push_back({"Location", path_of_request(call_id())});
  failpoint("gateway.admission.answering");
  respond(std::move(response));
}

}  // namespace kcoral::gateway
