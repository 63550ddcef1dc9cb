#include "executor/outcome_frames.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using schema::Outcome;

std::shared_ptr<const SealedMemory> memory_of(std::string_view text) { return *SealedMemory::copy_of(text); }

/// From `offset` to the end of `memory`; the digest tells the parts apart.
void add_part(RunReport& report, std::shared_ptr<const SealedMemory> memory, uint64_t offset, std::string_view name) {
  schema::Part& part = report.parts.emplace_back();
  part.extent.offset = offset;
  part.extent.length = memory->size_bytes() - offset;
  part.extent.memory = std::move(memory);
  part.sha256 = Sha256::of(name);
}

/// Sends and receives each frame through a socket, as between two processes.
Result<RunReport> pass_on(const std::vector<EncodedFrame>& frames) {
  auto sockets = make_frame_sockets();
  EXPECT_TRUE(sockets.has_value());
  ReportDecoder decoder;
  for (const EncodedFrame& encoded : frames) {
    std::vector<int> fds;
    for (const OutgoingFd& fd : encoded.fds) fds.push_back(fd.get());
    auto sent = send_frame(sockets->ours.get(), encoded.body, fds);
    EXPECT_TRUE(sent.has_value()) << sent.error().message;
    Frame frame;
    EXPECT_EQ(*receive_frame(sockets->theirs.get(), frame), Received::kFrame);
    if (frame.type() == "outcome") return decoder.on_outcome(std::move(frame));
    EXPECT_EQ(frame.type(), "outcome_data");
    auto taken = decoder.on_outcome_data(std::move(frame));
    EXPECT_TRUE(taken.has_value());
  }
  return fail(ErrorKind::kEngine, "no outcome");
}

Outcome failed_outcome() {
  Outcome outcome;
  outcome.ending = Outcome::Ending::kFailed;
  outcome.error = schema::InstructionError{schema::InstructionErrorKind::kRuntime, "boom", 2, "run", "r", "trace"};
  outcome.returns.push_back({"k", R"({"type":"integer","value":1})"});
  outcome.stdout_bytes = "out";
  outcome.elapsed_ms = 12.5;
  outcome.lease_wait_ms = 1;
  outcome.lease_held_ms = 2;
  return outcome;
}

TEST(OutcomeFrames, EverythingComesAcross) {
  const Outcome outcome = failed_outcome();
  auto report = make_report(outcome, "[1]");
  ASSERT_TRUE(report.has_value());
  auto frames = encode_report(RunId{Uuid::random(), 2}, *report);
  ASSERT_TRUE(frames.has_value());
  ASSERT_EQ(frames->size(), 1U);
  auto decoded = pass_on(*frames);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->ending, Outcome::Ending::kFailed);
  EXPECT_EQ(decoded->error_kind, "runtime");
  EXPECT_EQ(decoded->error_message, "boom");
  EXPECT_EQ(decoded->results_summary, "[1]");
  EXPECT_EQ(decoded->elapsed_ms, 12.5);
  EXPECT_EQ(decoded->lease_wait_ms, 1);
  EXPECT_EQ(decoded->lease_held_ms, 2);
  EXPECT_EQ(*decoded->outcome_members->view(), schema::render_outcome_members(outcome));
}

TEST(OutcomeFrames, TimedOutAndCancelledHaveNoMembers) {
  for (const auto ending : {Outcome::Ending::kTimedOut, Outcome::Ending::kCancelled}) {
    Outcome outcome;
    outcome.ending = ending;
    outcome.message = "because";
    auto report = make_report(outcome, "[]");
    ASSERT_TRUE(report.has_value());
    auto decoded = pass_on(*encode_report(RunId{Uuid::random(), 2}, *report));
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(decoded->ending, ending);
    EXPECT_EQ(decoded->error_message, "because");
    EXPECT_EQ(decoded->outcome_members, nullptr);
  }
}

TEST(OutcomeFrames, ManyPartsKeepTheirOrderAndSharedDataTravelsOnce) {
  RunReport report;
  report.ending = Outcome::Ending::kTimedOut;
  report.results_summary = "[]";
  const auto shared = memory_of("0123456789");
  for (uint64_t i = 0; i < 300; ++i) {
    const std::string text = fmt::format("part {}", i);
    if (i % 3 == 0) {
      add_part(report, shared, i % 10, text);
    } else {
      add_part(report, memory_of(text), 1, text);
    }
  }
  auto frames = encode_report(RunId{Uuid::random(), 2}, report);
  ASSERT_TRUE(frames.has_value());
  EXPECT_EQ(frames->size(), 1U + (201 + limits::kFrameFdsMax - 1) / limits::kFrameFdsMax);
  auto decoded = pass_on(*frames);
  ASSERT_TRUE(decoded.has_value());
  ASSERT_EQ(decoded->parts.size(), 300U);
  for (size_t i = 0; i < 300; ++i) {
    EXPECT_EQ(decoded->parts[i].sha256, report.parts[i].sha256);
    EXPECT_EQ(decoded->parts[i].extent.length, report.parts[i].extent.length);
    EXPECT_EQ(*decoded->parts[i].extent.memory->view(), *report.parts[i].extent.memory->view());
  }
}

TEST(OutcomeFrames, LongMessagesFitTheirFrame) {
  Outcome outcome = failed_outcome();
  outcome.error->message = std::string(100000, '\x01');
  auto report = make_report(outcome, "[]");
  ASSERT_TRUE(report.has_value());
  auto decoded = pass_on(*encode_report(RunId{Uuid::random(), 2}, *report));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_TRUE(decoded->error_message.starts_with("\x01\x01"));
  EXPECT_GT(decoded->outcome_members->size_bytes(), limits::kErrorMessageBytesMax);
}

TEST(OutcomeFrames, DecoderRefusesWhatDoesNotFit) {
  RunReport report;
  report.results_summary = "[]";
  report.ending = Outcome::Ending::kTimedOut;
  add_part(report, memory_of("abc"), 0, "abc");
  const auto frames = *encode_report(RunId{Uuid::random(), 2}, report);
  const auto as_frame = [](const EncodedFrame& encoded) {
    Frame frame{encoded.body, {}};
    for (const OutgoingFd& fd : encoded.fds) frame.fds.emplace_back(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
    return frame;
  };
  ReportDecoder decoder;
  EXPECT_FALSE(decoder.on_outcome(as_frame(frames.back())).has_value()) << "its data never came";

  for (const char* field : {"ending", "error_kind", "error_message", "elapsed_ms", "lease_wait_ms", "lease_held_ms"}) {
    for (const nlohmann::json& value : {nlohmann::json(), nlohmann::json::array()}) {
      ASSERT_TRUE(decoder.on_outcome_data(as_frame(frames[0])).has_value());
      Frame frame = as_frame(frames.back());
      frame.body[field] = value;
      EXPECT_FALSE(decoder.on_outcome(std::move(frame)).has_value()) << field;
    }
  }
  for (const char* table : {"", "{}", "[[0,0,4,\"\"]]", "[[0,0]]", "[[1,0,1,\"x\"]]"}) {
    ASSERT_TRUE(decoder.on_outcome_data(as_frame(frames[0])).has_value());
    Frame frame = as_frame(frames.back());
    const auto memory = memory_of(table);
    frame.fds[2].reset(::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 3));
    EXPECT_FALSE(decoder.on_outcome(std::move(frame)).has_value()) << table;
  }
  ASSERT_TRUE(decoder.on_outcome_data(as_frame(frames[0])).has_value());
  EXPECT_TRUE(decoder.on_outcome(as_frame(frames.back())).has_value());
}

}  // namespace
}  // namespace kcoral::executor
