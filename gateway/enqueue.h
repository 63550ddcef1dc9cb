// POST /requests: a submission whose client does not wait. It is answered 202 with the status document once the request
// is admitted, also where the id was admitted before with the same program, whatever has become of it since: the
// document's state says so.
#pragma once

#include <utility>

#include "gateway/submission_exchange.h"
#include "schema/limits.h"

namespace kcoral::gateway {

class EnqueueExchange final : public SubmissionExchange {
 public:
  EnqueueExchange(SubmissionService& service, const Call& call, Sender sender)
      : SubmissionExchange(service, call, std::move(sender), {false, limits::kAttemptsDefaultRequests}) {}

 private:
  void on_admitted(store::Admission admission) override;
  void on_status(Result<store::RequestStatus> status);
};

}  // namespace kcoral::gateway
