// Captured output: while a request runs and after it has ended, whatever it ended with.
#include <sys/mman.h>

#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

using schema::State;

/// What an executor appends to.
class Captured {
 public:
  std::shared_ptr<const UniqueFd> memory() const { return memory_; }
  void append(std::string_view bytes) {
    ASSERT_EQ(::write(memory_->get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }

 private:
  std::shared_ptr<const UniqueFd> memory_ = std::make_shared<const UniqueFd>(::memfd_create("captured", MFD_CLOEXEC));
};

class OutputTest : public StoreFixture {
 protected:
  Completion completion_saying(const std::string& text) {
    return completion(
        answer(R"({"status":"COMPLETED","results":{"x":[1,{"stdout":"no"}]},"stdout":)" + text + R"(,"stderr":""})"));
  }
};

TEST_F(OutputTest, ItGrowsWhileTheProgramRuns) {
  const Uuid id = admitted(submission());
  EXPECT_EQ(output(id)->text, "");
  EXPECT_FALSE(output(id)->is_complete);
  const Fence fence = claim()->fence;
  Captured captured;
  store_->note_output(fence, OutputStream::kStdout, captured.memory());
  captured.append("one\n");
  EXPECT_EQ(output(id)->text, "one\n");
  EXPECT_EQ(output(id)->next_offset, 4u);
  captured.append("two\n");
  EXPECT_EQ(output(id, OutputStream::kStdout, 4)->text, "two\n");
  EXPECT_EQ(output(id, OutputStream::kStderr)->text, "");
  EXPECT_EQ(output(id, OutputStream::kStdout, 9).error().kind, ErrorKind::kParse);
  ASSERT_TRUE(finish(fence, completion_saying(R"("one\ntwo\n")")));
  const OutputPiece all = output(id).value();
  EXPECT_EQ(all.text, "one\ntwo\n");
  EXPECT_TRUE(all.is_complete);
  EXPECT_EQ(output(id, OutputStream::kStdout, 8)->text, "");
}

TEST_F(OutputTest, WhatWasReadEarlyIsABeginningOfTheWhole) {
  const Uuid id = admitted(submission());
  const Fence fence = claim()->fence;
  Captured captured;
  store_->note_output(fence, OutputStream::kStdout, captured.memory());
  const std::string bytes = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xE2\x82z\xC3";
  std::string read;
  for (const char byte : bytes) {
    captured.append({&byte, 1});
    const OutputPiece piece = output(id, OutputStream::kStdout, read.size()).value();
    read += piece.text;
    EXPECT_EQ(piece.next_offset, read.size());
  }
  EXPECT_EQ(read, "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBDz");
  ASSERT_TRUE(finish(fence, completion_with_error(id, State::kTimedOut, {ErrorKind::kTimeout, "late"}, "late")));
  EXPECT_EQ(output(id, OutputStream::kStdout, read.size())->text, "\xEF\xBF\xBD") << "what never became complete";
}

TEST_F(OutputTest, ARunWithoutAResultLeavesWhatItPrinted) {
  for (const State state : {State::kTimedOut, State::kCancelled}) {
    const Uuid id = admitted(submission());
    const Fence fence = claim()->fence;
    Captured out;
    Captured err;
    store_->note_output(fence, OutputStream::kStdout, out.memory());
    store_->note_output(fence, OutputStream::kStderr, err.memory());
    out.append("step 1\n");
    err.append(std::string(200'000, 'w'));
    ASSERT_TRUE(finish(fence, completion_with_error(id, state, {ErrorKind::kTimeout, "over"}, "over")));
    EXPECT_EQ(output(id)->text, "step 1\n");
    reopen();
    EXPECT_EQ(output(id)->text, "step 1\n");
    EXPECT_EQ(output(id, OutputStream::kStderr)->text, std::string(200'000, 'w'));
    EXPECT_TRUE(output(id)->is_complete);
  }
}

TEST_F(OutputTest, ALostRunsOutputStaysWithTheLastAttempt) {
  Submission sent = submission();
  sent.max_attempts = 2;
  const Uuid id = admitted(std::move(sent));
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const Fence fence = claim()->fence;
    EXPECT_EQ(output(id)->text, "") << "of an earlier attempt";
    Captured captured;
    store_->note_output(fence, OutputStream::kStdout, captured.memory());
    captured.append(fmt::format("attempt {}", attempt));
    EXPECT_EQ(output(id)->text, fmt::format("attempt {}", attempt));
    ASSERT_TRUE(abandon(fence, "executor 1 was killed"));
  }
  EXPECT_EQ(state_of(id), State::kInterrupted);
  EXPECT_EQ(output(id)->text, "attempt 2");
}

TEST_F(OutputTest, OfALargeAnswerOnlyTheDocumentIsRead) {
  const Uuid id = admitted(submission());
  const std::string document = R"({"status":"FAILED","stdout":"seen","stderr":"","error":{}})";
  Completion with = completion(answer(document, {std::string(3 * limits::kMiB, 'p')}));
  with.state = State::kFailed;
  ASSERT_TRUE(finish(claim()->fence, with));
  EXPECT_EQ(output(id)->text, "seen");
}

TEST_F(OutputTest, AnUnknownIdIsNotFound) { EXPECT_EQ(output(Uuid::random()).error().kind, ErrorKind::kNotFound); }

}  // namespace
}  // namespace kcoral::store
