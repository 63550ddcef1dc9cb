#include "scheduler/answer_builder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/scheduler/reports.h"

namespace kcoral::scheduler {
namespace {

using namespace std::chrono_literals;
using schema::Outcome;
using schema::State;

class AnswerBuilder : public testing::Test {
 protected:
  store::Completion build(const executor::RunReport& report, uint64_t bytes_max = limits::kResponseBytesMax) {
    return make_completion(id_, 7ms, report, bytes_max);
  }
  nlohmann::json document(const store::Completion& completion) {
    return nlohmann::json::parse(completion.answer->document);
  }
  const Uuid id_ = Uuid::random();
};

TEST_F(AnswerBuilder, ACompletedRunIs200WithItsTimes) {
  const store::Completion completion = build(completed_report());
  EXPECT_EQ(completion.state, State::kCompleted);
  EXPECT_EQ(completion.answer->http_status, 200);
  const auto body = document(completion);
  EXPECT_EQ(body["status"], "COMPLETED");
  EXPECT_EQ(body["request_id"], id_.str());
  EXPECT_EQ(body["queue_ms"], 7.0);
  EXPECT_EQ(body["elapsed_ms"], 12.5);
  EXPECT_EQ(body["results"]["value"]["value"], 42);
}

TEST_F(AnswerBuilder, AnAnswerAtTheLimitPassesAndOneByteMoreIsTooLarge) {
  const uint64_t bytes = build(completed_report(1000)).answer->body_bytes();
  EXPECT_EQ(build(completed_report(1000), bytes).state, State::kCompleted);
  const store::Completion over = build(completed_report(1000), bytes - 1);
  EXPECT_EQ(over.state, State::kFailed);
  EXPECT_EQ(over.answer->http_status, 500);
  EXPECT_EQ(document(over)["error"]["kind"], "response_too_large");
  EXPECT_EQ(over.error_kind, "response_too_large");
}

TEST_F(AnswerBuilder, ADeadlineIs504AndACancellation409) {
  const store::Completion late = build(ended_report(Outcome::Ending::kTimedOut, "the deadline passed"));
  EXPECT_EQ(late.state, State::kTimedOut);
  EXPECT_EQ(late.answer->http_status, 504);
  EXPECT_EQ(document(late)["error"]["message"], "the deadline passed");
  const store::Completion cancelled = build(ended_report(Outcome::Ending::kCancelled, "cancelled"));
  EXPECT_EQ(cancelled.state, State::kCancelled);
  EXPECT_EQ(cancelled.answer->http_status, 409);
  EXPECT_EQ(document(cancelled)["error"]["kind"], "cancelled");
}

}  // namespace
}  // namespace kcoral::scheduler
