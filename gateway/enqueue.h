// POST /requests: a submission whose client does not wait. It is answered 202 with the status document once the request
// is admitted, also where the id was admitted before with the same program, whatever has become of it since: the
// document's state says so.
#pragma once

#include "gateway/submission_exchange.h"

namespace kcoral::gateway {

class EnqueueExchange final : public SubmissionExchange {
 public:
  using SubmissionExchange::SubmissionExchange;

 private:
  Terms terms() const override { return {false, limits::kAttemptsDefaultRequests}; }
  void on_admitted() override;
  void on_status(Result<store::RequestStatus> status);
};

}  // namespace kcoral::gateway
