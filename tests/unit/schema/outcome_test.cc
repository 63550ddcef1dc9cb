#include "schema/outcome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "schema/json_reader.h"
#include "schema/limits.h"

namespace kcoral::schema {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Json = nlohmann::ordered_json;

constexpr std::string_view kIdText = "01234567-89ab-4cde-8f01-23456789abcd";
Uuid request_id() { return *Uuid::parse(kIdText); }

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

std::shared_ptr<const SealedMemory> memory(std::string_view content) {
  auto sealed = SealedMemory::copy_of(content);
  KCORAL_CHECK(sealed);
  return *sealed;
}

std::string text_of(const Answer& answer) {
  std::string body;
  for (const Answer::Segment& segment : answer.body()) {
    if (const auto* extent = std::get_if<Extent>(&segment)) {
      body += extent->memory->view()->substr(extent->offset, extent->length);
    } else if (const auto* framing = std::get_if<std::string>(&segment)) {
      body += *framing;
    } else {
      body += std::get<std::string_view>(segment);
    }
  }
  return body;
}

Outcome failed_outcome() {
  Outcome outcome;
  outcome.ending = Outcome::Ending::kFailed;
  outcome.error = InstructionError{.kind = InstructionErrorKind::kRuntime,
                                   .message = "ValueError: \"x\"",
                                   .instruction_index = 3,
                                   .instruction_op = "run",
                                   .instruction_id = "r",
                                   .traceback = "Traceback:\n  line"};
  return outcome;
}

Json error_of(const Outcome& outcome) { return Json::parse("{" + render_outcome_members(outcome) + "}").at("error"); }

TEST(InstructionErrorKindTest, NamesAreThoseOfTheContractAndReadBack) {
  const std::vector<std::string_view> names = {"parse",      "compile",       "runtime",     "correctness",
                                               "gpu_access", "serialization", "unavailable", "engine"};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto kind = static_cast<InstructionErrorKind>(i);
    EXPECT_EQ(wire_name(kind), names[i]);
    EXPECT_EQ(instruction_error_kind_from(names[i]), kind);
  }
  for (const std::string_view name : {"", "Parse", "timeout"})
    EXPECT_EQ(instruction_error_kind_from(name), std::nullopt);
}

TEST(RenderOutcomeTest, CompletedMembersByteForByte) {
  Outcome outcome;
  outcome.ending = Outcome::Ending::kCompleted;
  outcome.returns = {{"b\n", R"({"type":"integer","value":12345678901234567890123})"}, {"a", R"({"type":"null"})"}};
  outcome.stdout_bytes = "hello\n";
  outcome.stderr_truncated = true;
  EXPECT_EQ(render_outcome_members(outcome),
            R"("results":{"b\n":{"type":"integer","value":12345678901234567890123},"a":{"type":"null"}},)"
            R"("stdout":"hello\n","stderr":"","stdout_truncated":false,"stderr_truncated":true)");
}

TEST(RenderOutcomeTest, FailedMembersByteForByte) {
  EXPECT_EQ(render_outcome_members(failed_outcome()),
            R"("results":{},"stdout":"","stderr":"","stdout_truncated":false,"stderr_truncated":false,)"
            R"("error":{"kind":"runtime","message":"ValueError: \"x\"","instruction_index":3,"instruction_op":"run",)"
            R"("instruction_id":"r","traceback":"Traceback:\n  line"})");
}

TEST(RenderOutcomeTest, AReturnHasNoInstructionId) {
  Outcome outcome = failed_outcome();
  outcome.error->instruction_op = "return";
  outcome.error->instruction_id = std::nullopt;
  EXPECT_TRUE(error_of(outcome).at("instruction_id").is_null());
  EXPECT_THAT(keys_of(error_of(outcome)),
              ElementsAre("kind", "message", "instruction_index", "instruction_op", "instruction_id", "traceback"));
}

TEST(RenderOutcomeTest, GpuAccessSaysMore) {
  Outcome outcome = failed_outcome();
  outcome.error->kind = InstructionErrorKind::kGpuAccess;
  outcome.error->gpu_access = GpuAccess{"cuInit", "a \"b\".py:3", std::nullopt};
  EXPECT_THAT(keys_of(error_of(outcome)),
              ElementsAre("kind", "message", "instruction_index", "instruction_op", "instruction_id", "traceback",
                          "cuda_call", "location", "interfered_request_id"));
  EXPECT_EQ(error_of(outcome).at("cuda_call"), "cuInit");
  EXPECT_EQ(error_of(outcome).at("location"), "a \"b\".py:3");
  EXPECT_TRUE(error_of(outcome).at("interfered_request_id").is_null());
  outcome.error->gpu_access->interfered_request_id = "7f0c0f3e-0000-4000-8000-000000000000";
  EXPECT_EQ(error_of(outcome).at("interfered_request_id"), "7f0c0f3e-0000-4000-8000-000000000000");
}

TEST(RenderOutcomeTest, OutputThatIsNotUtf8NeverBreaksTheJson) {
  Outcome outcome;
  outcome.ending = Outcome::Ending::kCompleted;
  outcome.stdout_bytes = std::string("a\0b\xff\x1b[1m\"\\\xe2\x82", 12);
  outcome.stderr_bytes = "\xf0\x9f\x98";  // cut in the middle of a character
  const Json members = Json::parse("{" + render_outcome_members(outcome) + "}");
  EXPECT_EQ(members.at("stdout").get<std::string>(), std::string("a\0b\uFFFD\x1b[1m\"\\\uFFFD", 15));
  EXPECT_EQ(members.at("stderr").get<std::string>(), "\uFFFD");
}

TEST(RenderOutcomeTest, ALongMessageIsCutAtACharacterAndSaysSo) {
  for (size_t shift = 0; shift < 4; ++shift) {
    Outcome outcome = failed_outcome();
    outcome.error->message = std::string(shift, 'x');
    while (outcome.error->message.size() < 20'000) outcome.error->message += "\U0001F600";
    const auto message = error_of(outcome).at("message").get<std::string>();
    EXPECT_LE(message.size(), limits::kErrorMessageBytesMax);
    EXPECT_GT(message.size(), limits::kErrorMessageBytesMax - 4);
    EXPECT_TRUE(is_valid_utf8(message));
    EXPECT_THAT(message, EndsWith(fmt::format("\U0001F600 ... (cut; the whole message has {} bytes)",
                                              outcome.error->message.size())));
  }
  Outcome outcome = failed_outcome();
  outcome.error->message = std::string(limits::kErrorMessageBytesMax, 'x');
  EXPECT_EQ(error_of(outcome).at("message").get<std::string>(), outcome.error->message);
}

TEST(RenderOutcomeTest, ALongTracebackKeepsItsEndFromACharacterOn) {
  for (size_t shift = 0; shift < 4; ++shift) {
    Outcome outcome = failed_outcome();
    std::string& traceback = outcome.error->traceback;
    traceback.clear();
    while (traceback.size() < 10'000) traceback += "\U0001F600";
    traceback += std::string(shift, 'x');
    const auto kept = error_of(outcome).at("traceback").get<std::string>();
    EXPECT_LE(kept.size(), limits::kTracebackBytesMax);
    EXPECT_GT(kept.size(), limits::kTracebackBytesMax - 4);
    EXPECT_THAT(kept, StartsWith("\U0001F600"));
    EXPECT_THAT(traceback, EndsWith(kept));
  }
}

TEST(RenderOutcomeDeathTest, OnlyWhatRanHasMembers) {
  Outcome outcome = failed_outcome();
  outcome.ending = Outcome::Ending::kTimedOut;
  EXPECT_DEATH((void)render_outcome_members(outcome), "broken invariant");
  outcome.ending = Outcome::Ending::kCompleted;
  EXPECT_DEATH((void)render_outcome_members(outcome), "broken invariant") << "completed with an error";
  outcome = failed_outcome();
  outcome.error.reset();
  EXPECT_DEATH((void)render_outcome_members(outcome), "broken invariant") << "failed without one";
}

TEST(RenderResultDocumentTest, FieldsStandInTheOrderOfTheContract) {
  const OutcomeTimes times{.queue_ms = 1.5, .elapsed_ms = 12.3454, .lease_wait_ms = 0, .lease_held_ms = 1e6};
  const std::string document =
      render_result_document(false, request_id(), times, render_outcome_members(failed_outcome()));
  EXPECT_THAT(document, StartsWith(R"({"status":"FAILED","request_id":"01234567-89ab-4cde-8f01-23456789abcd",)"
                                   R"("queue_ms":1.500,"elapsed_ms":12.345,"lease_wait_ms":0.000,)"
                                   R"("lease_held_ms":1000000.000,"results":{},)"));
  EXPECT_THAT(keys_of(Json::parse(document)),
              ElementsAre("status", "request_id", "queue_ms", "elapsed_ms", "lease_wait_ms", "lease_held_ms", "results",
                          "stdout", "stderr", "stdout_truncated", "stderr_truncated", "error"));
  Outcome completed;
  completed.ending = Outcome::Ending::kCompleted;
  const Json whole = Json::parse(render_result_document(true, request_id(), {}, render_outcome_members(completed)));
  EXPECT_EQ(whole.at("status"), "COMPLETED");
  EXPECT_FALSE(whole.contains("error"));
}

TEST(RenderResultDocumentTest, TimesAreNeverNegative) {
  const OutcomeTimes times{.queue_ms = -0.5, .elapsed_ms = -0.0};
  EXPECT_THAT(render_result_document(true, request_id(), times, "\"results\":{}"),
              HasSubstr(R"("queue_ms":0.000,"elapsed_ms":0.000,)"));
}

TEST(AnswerTest, WithoutPartsTheBodyIsTheDocument) {
  const Answer answer = make_result_answer(R"({"status":"COMPLETED"})", {});
  EXPECT_EQ(answer.http_status, 200);
  EXPECT_EQ(answer.content_type(), "application/json");
  EXPECT_EQ(answer.boundary, "");
  EXPECT_EQ(answer.retry_after_seconds, 0);
  EXPECT_EQ(text_of(answer), R"({"status":"COMPLETED"})");
  EXPECT_EQ(answer.body_bytes(), text_of(answer).size());
}

TEST(AnswerTest, MultipartByteForByte) {
  const auto shared = memory("..abc\r\n--x..");
  std::vector<Part> parts = {{{shared, 2, 8}, {}}, {{shared, 5, 0}, {}}, {{memory("z"), 0, 1}, {}}};
  Answer answer = make_result_answer("{}", parts);
  answer.boundary = "B";
  EXPECT_EQ(answer.content_type(), "multipart/form-data; boundary=B");
  EXPECT_EQ(text_of(answer),
            "--B\r\nContent-Disposition: form-data; name=\"result\"\r\nContent-Type: application/json\r\n\r\n"
            "{}\r\n"
            "--B\r\nContent-Disposition: form-data; name=\"return:0\"\r\nContent-Type: application/octet-stream\r\n\r\n"
            "abc\r\n--x\r\n"
            "--B\r\nContent-Disposition: form-data; name=\"return:1\"\r\nContent-Type: application/octet-stream\r\n\r\n"
            "\r\n"
            "--B\r\nContent-Disposition: form-data; name=\"return:2\"\r\nContent-Type: application/octet-stream\r\n\r\n"
            "z\r\n"
            "--B--\r\n");
  EXPECT_EQ(answer.body_bytes(), text_of(answer).size());
}

TEST(AnswerTest, SegmentsReferToContentInsteadOfCopyingIt) {
  const auto content = memory(std::string(100'000, 'x'));
  const Answer answer = make_result_answer("{}", {{{content, 10, 90'000}, {}}});
  const auto body = answer.body();
  ASSERT_EQ(body.size(), 5U);
  EXPECT_EQ(std::get<std::string_view>(body[1]).data(), answer.document.data());
  const auto& extent = std::get<Extent>(body[3]);
  EXPECT_EQ(extent.memory, content);
  EXPECT_EQ(extent.offset, 10U);
  EXPECT_EQ(extent.length, 90'000U);
  EXPECT_EQ(answer.body_bytes(), text_of(answer).size());
}

TEST(AnswerTest, BodyBytesAreExactForAnyNumberOfParts) {
  const auto content = memory("0123456789");
  for (size_t count = 0; count <= 1001; count += count < 12 ? 1 : 89) {
    std::vector<Part> parts;
    for (size_t i = 0; i < count; ++i) parts.push_back({{content, i % 10, (10 - i % 10) * (i % 2)}, {}});
    const Answer answer = make_result_answer("{\"a\":1}", parts);
    EXPECT_EQ(answer.body_bytes(), text_of(answer).size()) << count;
  }
}

TEST(AnswerTest, BoundariesAreFreshLegalAndStay) {
  const std::vector<Part> parts = {{{memory("x"), 0, 1}, {}}};
  const Answer first = make_result_answer("{}", parts);
  const Answer second = make_result_answer("{}", parts);
  EXPECT_NE(first.boundary, second.boundary);
  EXPECT_LE(first.boundary.size(), limits::kBoundaryBytesMax);
  EXPECT_EQ(first.boundary.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"), std::string::npos);
  EXPECT_EQ(text_of(first), text_of(first));
}

TEST(AnswerTest, Errors) {
  const Answer answer = make_error_answer(request_id(), Error{ErrorKind::kConflict, "id \"x\" is taken"});
  EXPECT_EQ(answer.http_status, 409);
  EXPECT_EQ(answer.retry_after_seconds, 0);
  EXPECT_EQ(answer.content_type(), "application/json");
  EXPECT_EQ(text_of(answer), R"({"status":"ERROR","request_id":"01234567-89ab-4cde-8f01-23456789abcd",)"
                             R"("error":{"kind":"conflict","message":"id \"x\" is taken"}})");
}

TEST(AnswerTest, EveryKindOfErrorHasItsStatusAndName) {
  for (int i = 0; i <= static_cast<int>(ErrorKind::kEnvironment); ++i) {
    const auto kind = static_cast<ErrorKind>(i);
    const Answer answer = make_error_answer(request_id(), Error{kind, "m\xff"}, 7);
    const Json document = Json::parse(answer.document);
    EXPECT_EQ(answer.http_status, info(kind).http_status);
    EXPECT_EQ(document.at("error").at("kind"), info(kind).wire_name);
    EXPECT_EQ(document.at("error").at("message"), "m\uFFFD");
    EXPECT_THAT(keys_of(document), ElementsAre("status", "request_id", "error"));
    const bool retries = kind == ErrorKind::kBusy || kind == ErrorKind::kRateLimited;
    EXPECT_EQ(answer.retry_after_seconds, retries ? 7 : 0) << info(kind).wire_name;
    EXPECT_EQ(make_error_answer(request_id(), Error{kind, ""}).retry_after_seconds, retries ? 1 : 0);
  }
}

TEST(AnswerTest, CacheMiss) {
  const Digest first = Sha256::of("a");
  const Digest second = Sha256::of("b");
  const Answer answer = make_cache_miss_answer(request_id(), {second, first});
  EXPECT_EQ(answer.http_status, 200);
  EXPECT_EQ(text_of(answer), fmt::format(R"({{"status":"CACHE_MISS","request_id":"{}","missing_blobs":["{}","{}"]}})",
                                         kIdText, second.hex(), first.hex()));
}

}  // namespace
}  // namespace kcoral::schema
