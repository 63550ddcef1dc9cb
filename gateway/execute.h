// POST /execute: a submission, and its client's wait for the answer.
//
// A client that goes away only stops waiting: its request runs on, until nobody has waited for it for a while
// (gateway/abandonment.h). The limit on the wait for a worker is the waiting client's: when it passes, the request is
// rejected if it is still queued (the store decides which came first), and the rejection comes back as the answer like
// any other.
#pragma once

#include "gateway/submission_exchange.h"

namespace kcoral::gateway {

class ExecuteExchange final : public SubmissionExchange {
 public:
  using SubmissionExchange::SubmissionExchange;
  ~ExecuteExchange() override;

  void release() override;

 private:
  Terms terms() const override { return {true, limits::kAttemptsDefaultExecute}; }
  void on_submitted() override;
  void on_admitted() override;
  void on_outcome(Result<AnswerPtr> outcome);
  void on_worker_wait_passed();

  bool is_attending_ = false;
};

}  // namespace kcoral::gateway
