// POST /execute: a submission, and its client's wait for the answer.
//
// A client that goes away only stops waiting: its request runs on, until nobody has waited for it for a while
// (gateway/abandonment.h). The limit on the wait for a worker is the waiting client's: when it passes, the request is
// rejected if it is still queued (the store decides which came first), and the rejection comes back as the answer like
// any other.
#pragma once

#include <utility>

#include "gateway/submission_exchange.h"
#include "schema/limits.h"

namespace kcoral::gateway {

class ExecuteExchange final : public SubmissionExchange {
 public:
  ExecuteExchange(SubmissionService& service, const Call& call, Sender sender)
      : SubmissionExchange(service, call, std::move(sender), {true, limits::kAttemptsDefaultExecute}) {}

  void release() override;

 private:
  void on_admitted(store::Admission admission) override;
  void on_outcome(Result<AnswerPtr> outcome);
  void on_worker_wait_passed();
};

}  // namespace kcoral::gateway
