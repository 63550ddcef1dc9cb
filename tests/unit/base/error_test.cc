#include "base/error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kcoral {
namespace {

TEST(Error, EveryKindHasTheStatusOfTheContract) {
  const std::pair<ErrorKind, std::pair<const char*, int>> expected[] = {
      {ErrorKind::kParse, {"parse", 400}},
      {ErrorKind::kUnauthorized, {"unauthorized", 401}},
      {ErrorKind::kForbidden, {"forbidden", 403}},
      {ErrorKind::kNotFound, {"not_found", 404}},
      {ErrorKind::kMethodNotAllowed, {"method_not_allowed", 405}},
      {ErrorKind::kConflict, {"conflict", 409}},
      {ErrorKind::kCancelled, {"cancelled", 409}},
      {ErrorKind::kGone, {"gone", 410}},
      {ErrorKind::kRequestTooLarge, {"request_too_large", 413}},
      {ErrorKind::kRateLimited, {"rate_limited", 429}},
      {ErrorKind::kBusy, {"busy", 503}},
      {ErrorKind::kTimeout, {"timeout", 504}},
      {ErrorKind::kEngine, {"engine", 500}},
      {ErrorKind::kResponseTooLarge, {"response_too_large", 500}},
      {ErrorKind::kEnvironment, {"engine", 500}},
  };
  for (const auto& [kind, wire] : expected) {
    EXPECT_EQ(info(kind).wire_name, wire.first);
    EXPECT_EQ(info(kind).http_status, wire.second);
  }
  EXPECT_TRUE(info(ErrorKind::kBusy).retry_later);
  EXPECT_FALSE(info(ErrorKind::kParse).retry_later);
}

Result<int> half(int number) {
  if (number % 2 != 0) return fail(ErrorKind::kParse, "{} is odd", number);
  return number / 2;
}

TEST(Error, ResultHoldsTheValueOrTheReason) {
  EXPECT_EQ(*half(4), 2);
  const Result<int> odd = half(3);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().message, "3 is odd");
}

TEST(Error, FromErrnoNamesCallSubjectAndReason) {
  errno = ENOENT;
  const Status status = fail_errno("open", "/nowhere");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "open /nowhere: No such file or directory");
}

TEST(ErrorDeathTest, ABrokenInvariantNamesItselfAndAborts) {
  EXPECT_DEATH(KCORAL_CHECK(1 + 1 == 3), "broken invariant at .*1 \\+ 1 == 3");
}

}  // namespace
}  // namespace kcoral
