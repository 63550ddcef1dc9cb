// A program on its way to the store: what POST /execute and POST /requests have in common, from the head of the request
// to the admission. What follows it is theirs.
//
// Once admitted, a request is the store's. SubmissionService is thread-safe and outlives its exchanges; an exchange
// lives on its connection's I/O thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "gateway/abandonment.h"
#include "gateway/body_budget.h"
#include "gateway/store_exchange.h"
#include "gateway/submission.h"
#include "schema/program.h"
#include "store/store.h"

namespace kcoral::gateway {

struct SubmissionConfig {
  std::chrono::milliseconds worker_wait = limits::kWorkerWait;
  schema::ProgramBounds bounds;
};

class SubmissionService {
 public:
  /// `budget` is what programs may hold until the store has taken them over.
  SubmissionService(SubmissionConfig config, std::shared_ptr<BodyBudget> budget, store::Store& store,
                    WaitingClients& waiting, Abandonment& abandonment)
      : config_(std::move(config)),
        budget_(std::move(budget)),
        store_(store),
        waiting_(waiting),
        abandonment_(abandonment) {}

  /// Errors are kParse and kBusy. Requires: the framing bounds the body.
  Result<std::shared_ptr<Exchange>> open_execute(const Call& call);
  Result<std::shared_ptr<Exchange>> open_enqueue(const Call& call);

  /// From here on programs are answered 503 busy instead of being admitted.
  void stop_admitting();

  const SubmissionConfig& config() const { return config_; }

 private:
  friend class SubmissionExchange;

  template <typename Kind>
  Result<std::shared_ptr<Exchange>> open(const Call& call);
  Status check_admits() const;

  const SubmissionConfig config_;
  const std::shared_ptr<BodyBudget> budget_;  // shared with admissions under way, which the store may end later
  store::Store& store_;
  WaitingClients& waiting_;
  Abandonment& abandonment_;
  mutable Mutex mutex_;
  bool admits_ KCORAL_GUARDED_BY(mutex_) = true;
};

class SubmissionExchange : public StoreExchange {
 public:
  /// What a request's head says of its submission.
  struct Sender {
    std::string client;
    std::string peer;
    std::unique_ptr<SubmissionReader> reader;
  };
  /// What the two kinds of submission differ in before the admission.
  struct Terms {
    bool is_synchronous;
    int attempts_default;
  };

  ~SubmissionExchange() override;

  void on_body(std::string_view bytes) final;
  void on_body_end() final;

 protected:
  SubmissionExchange(SubmissionService& service, const Call& call, Sender sender, Terms terms);

  /// The store has the request, from now on or for long.
  virtual void on_admitted(store::Admission admission) = 0;

  SubmissionService& service() const { return service_; }

 private:
  void admit(ReceivedProgram received);
  void on_admission(Result<store::Admission> admission);

  SubmissionService& service_;
  Sender sender_;  // its reader: until the body is complete
  const Terms terms_;
  bool is_submitted_ = false;
};

}  // namespace kcoral::gateway
