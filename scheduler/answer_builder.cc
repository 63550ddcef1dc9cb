#include "scheduler/answer_builder.h"

#include <utility>

namespace kcoral::scheduler {
namespace {

using schema::Answer;
using schema::Outcome;
using schema::State;

store::Completion ended_with_error(const Uuid& request_id, State state, const Error& error) {
  return store::completion_with_error(request_id, state, error, error.message);
}

store::Completion ended_with_result(const Uuid& request_id, const executor::RunReport& report,
                                    const schema::OutcomeTimes& times, uint64_t response_bytes_max) {
  const auto members = report.outcome_members->view();
  if (!members) return ended_with_error(request_id, State::kFailed, members.error());
  const bool completed = report.ending == Outcome::Ending::kCompleted;
  Answer answer =
      schema::make_result_answer(schema::render_result_document(completed, request_id, times, *members), report.parts);
  if (answer.body_bytes() > response_bytes_max) {
    return ended_with_error(request_id, State::kFailed,
                            {ErrorKind::kResponseTooLarge,
                             fmt::format("the answer has {} bytes; this server sends at most {} (--max-response-bytes)",
                                         answer.body_bytes(), response_bytes_max)});
  }
  store::Completion completion;
  completion.state = completed ? State::kCompleted : State::kFailed;
  completion.answer = std::make_shared<const Answer>(std::move(answer));
  completion.reason = completed ? "every instruction ran" : report.error_message;
  completion.error_kind = report.error_kind;
  completion.error_message = report.error_message;
  completion.results_summary = report.results_summary;
  return completion;
}

store::Completion ended(const Uuid& request_id, const executor::RunReport& report, const schema::OutcomeTimes& times,
                        uint64_t response_bytes_max) {
  switch (report.ending) {
    case Outcome::Ending::kTimedOut:
      return ended_with_error(request_id, State::kTimedOut, {ErrorKind::kTimeout, report.error_message});
    case Outcome::Ending::kCancelled:
      return ended_with_error(request_id, State::kCancelled, {ErrorKind::kCancelled, report.error_message});
    case Outcome::Ending::kCompleted:
    case Outcome::Ending::kFailed:
      break;
  }
  return ended_with_result(request_id, report, times, response_bytes_max);
}

}  // namespace

store::Completion make_completion(const Uuid& request_id, std::chrono::microseconds queued,
                                  const executor::RunReport& report, uint64_t response_bytes_max) {
  const schema::OutcomeTimes times{to_ms(queued), report.elapsed_ms, report.lease_wait_ms, report.lease_held_ms};
  store::Completion completion = ended(request_id, report, times, response_bytes_max);
  completion.times = times;
  return completion;
}

}  // namespace kcoral::scheduler
