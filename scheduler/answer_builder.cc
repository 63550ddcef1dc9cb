#include "scheduler/answer_builder.h"

#include <utility>

namespace kcoral::scheduler {
namespace {

using schema::Answer;
using schema::Outcome;
using schema::State;

void end_with_error(store::Completion& completion, const Uuid& request_id, State state, Error error) {
  completion.state = state;
  completion.reason = error.message;
  completion.error_kind = info(error.kind).wire_name;
  completion.error_message = error.message;
  completion.results_summary = "[]";
  completion.answer = std::make_shared<const Answer>(schema::make_error_answer(request_id, error));
}

void end_with_result(store::Completion& completion, const Uuid& request_id, const executor::RunReport& report,
                     uint64_t response_bytes_max) {
  const auto members = report.outcome_members->view();
  if (!members) return end_with_error(completion, request_id, State::kFailed, members.error());
  const bool completed = report.ending == Outcome::Ending::kCompleted;
  Answer answer = schema::make_result_answer(
      schema::render_result_document(completed, request_id, completion.times, *members), report.parts);
  if (answer.body_bytes() > response_bytes_max) {
    Error error{ErrorKind::kResponseTooLarge,
                fmt::format("the answer has {} bytes; this server sends at most {} (--max-response-bytes)",
                            answer.body_bytes(), response_bytes_max)};
    return end_with_error(completion, request_id, State::kFailed, std::move(error));
  }
  completion.state = completed ? State::kCompleted : State::kFailed;
  completion.reason = completed ? "every instruction ran" : report.error_message;
  completion.answer = std::make_shared<const Answer>(std::move(answer));
}

}  // namespace

store::Completion make_completion(const Uuid& request_id, std::chrono::microseconds queued,
                                  const executor::RunReport& report, uint64_t response_bytes_max) {
  store::Completion completion;
  completion.times = {to_ms(queued), report.elapsed_ms, report.lease_wait_ms, report.lease_held_ms};
  completion.error_kind = report.error_kind;
  completion.error_message = report.error_message;
  completion.results_summary = report.results_summary;
  switch (report.ending) {
    case Outcome::Ending::kCompleted:
    case Outcome::Ending::kFailed:
      end_with_result(completion, request_id, report, response_bytes_max);
      break;
    case Outcome::Ending::kTimedOut:
      end_with_error(completion, request_id, State::kTimedOut, {ErrorKind::kTimeout, report.error_message});
      break;
    case Outcome::Ending::kCancelled:
      end_with_error(completion, request_id, State::kCancelled, {ErrorKind::kCancelled, report.error_message});
      break;
  }
  return completion;
}

}  // namespace kcoral::scheduler
