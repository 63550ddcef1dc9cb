#include "gateway/submission.h"

#include <gtest/gtest.h>

#include "schema/json_reader.h"
#include "tests/unit/gateway/live_gateway.h"

namespace kcoral::gateway {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=frontier";

std::shared_ptr<BodyBudget> budget(uint64_t bytes_max = 1 << 20, size_t blobs_max = 100) {
  return std::make_shared<BodyBudget>(bytes_max, blobs_max);
}

Result<ReceivedProgram> read(std::string_view body, size_t piece_bytes = std::string_view::npos,
                             std::shared_ptr<BodyBudget> from = budget()) {
  auto reader = SubmissionReader::create(kType, std::move(from));
  if (!reader) return fail(reader.error());
  while (!body.empty()) {
    const std::string_view piece = body.substr(0, piece_bytes);
    body.remove_prefix(piece.size());
    if (auto fed = (*reader)->feed(piece); !fed) return fail(fed.error());
  }
  return (*reader)->finish({});
}

void expect_refused(std::string_view body, std::string_view why) {
  for (const size_t piece_bytes : {std::string_view::npos, size_t{1}}) {
    const auto outcome = read(body, piece_bytes);
    ASSERT_FALSE(outcome) << why;
    EXPECT_EQ(outcome.error().kind, ErrorKind::kParse);
    EXPECT_NE(outcome.error().message.find(why), std::string::npos) << outcome.error().message;
  }
}

TEST(Submission, CollectsTheProgramAndStagesItsBlobs) {
  const std::string body = blob_part("content") + bytes_program("content") + closing();
  for (const size_t piece_bytes : {size_t{1}, size_t{7}, std::string_view::npos}) {
    const auto received = read(body, piece_bytes);
    ASSERT_TRUE(received) << received.error().message;
    EXPECT_EQ(received->sha256, Sha256::of(received->text));
    ASSERT_EQ(received->staged.size(), 1u);
    EXPECT_EQ(received->staged[0].sha256, Sha256::of("content"));
    EXPECT_EQ(*received->staged[0].content->view(), "content");
  }
}

TEST(Submission, AnEmptyBlobIsABlob) {
  const auto received = read(bytes_program("") + blob_part("") + closing());
  ASSERT_TRUE(received) << received.error().message;
  EXPECT_EQ(received->staged[0].content->size_bytes(), 0u);
}

TEST(Submission, ABlobNeedNotBeSent) {
  const auto received = read(bytes_program("held already") + closing());
  ASSERT_TRUE(received);
  EXPECT_TRUE(received->staged.empty());
}

TEST(Submission, RefusesWhatTheContractNames) {
  const std::string program = bytes_program("content");
  const std::string digest = Sha256::of("content").hex();
  expect_refused(closing(), "part \"program\" is missing");
  expect_refused(program + program + closing(), "part \"program\" was sent twice");
  expect_refused(program + part("extra", "text/plain", "x") + closing(), "part \"extra\" is neither");
  expect_refused(program + part("blob:abc", "application/octet-stream", "x") + closing(), "64 lowercase hexadecimal");
  expect_refused(program + part("blob:" + std::string(64, 'A'), "application/octet-stream", "x") + closing(),
                 "64 lowercase hexadecimal");
  expect_refused(program + blob_part("content") + blob_part("content") + closing(), "was sent twice");
  expect_refused(part("program", "text/plain", kProgram) + closing(), "Content-Type application/json");
  expect_refused(program + part("blob:" + digest, "text/plain", "content") + closing(),
                 "Content-Type application/octet-stream");
  expect_refused(program + part("blob:" + digest, "application/octet-stream", "other") + closing(),
                 "its bytes hash to");
  expect_refused(program + blob_part("content") + blob_part("not referenced") + closing(), "no upload refers to it");
  expect_refused(program + blob_part("content"), "ends before its closing boundary");
  expect_refused(program_part("{}") + closing(), "instructions");
  expect_refused(program_part("not json") + closing(), "");
}

TEST(Submission, IgnoresParametersOfMediaTypes) {
  EXPECT_TRUE(read(part("program", "Application/JSON; charset=utf-8", kProgram) + closing()));
}

TEST(Submission, AForeignNameInAMessageIsUtf8) {
  const auto outcome = read(part("\xff\xfe", "text/plain", "x") + closing());
  ASSERT_FALSE(outcome);
  EXPECT_TRUE(schema::is_valid_utf8(outcome.error().message));
}

TEST(Submission, HoldsItsShareOfTheBudgetUntilItIsDropped) {
  const auto shared = budget();
  {
    const auto received = read(bytes_program("content") + blob_part("content") + closing(), 10, shared);
    ASSERT_TRUE(received) << received.error().message;
    EXPECT_EQ(shared->bytes_taken(), received->text.size() + 7);
    EXPECT_EQ(shared->blobs_taken(), 1u);
    received->share->release();
    EXPECT_EQ(shared->bytes_taken(), 0u);
    EXPECT_EQ(shared->blobs_taken(), 0u);
  }
  EXPECT_EQ(shared->bytes_taken(), 0u);
}

TEST(Submission, IsRefusedWhenTheBudgetHasNoRoomAndGivesItsOwnBack) {
  const std::string body = bytes_program("content") + blob_part("content") + closing();
  const uint64_t needed = read(body)->text.size() + 7;
  EXPECT_TRUE(read(body, 10, budget(needed, 1)));
  for (const auto& [small, kind] : {std::pair{budget(needed - 1, 1), ErrorKind::kBusy},
                                    std::pair{budget(needed, 0), ErrorKind::kRequestTooLarge}}) {
    const auto outcome = read(body, 10, small);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().kind, kind);
    EXPECT_EQ(small->bytes_taken(), 0u);
    EXPECT_EQ(small->blobs_taken(), 0u);
  }
}

TEST(Submission, GivesItsShareBackWhereverItsBodyEnds) {
  const auto shared = budget();
  const std::string body = blob_part("content") + bytes_program("content") + closing();
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    EXPECT_FALSE(read(body.substr(0, bytes), 7, shared) && bytes + 2 < body.size());
    ASSERT_EQ(shared->bytes_taken(), 0u) << bytes;
    ASSERT_EQ(shared->blobs_taken(), 0u) << bytes;
  }
}

}  // namespace
}  // namespace kcoral::gateway
