#include "executor/shortage.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kcoral::executor {
namespace {

Error error_of(int number) {
  errno = number;
  return fail_errno("open", "/x").value();
}

TEST(Shortage, PassesAndIsNeverPermanent) {
  for (const int number : {EAGAIN, ENOMEM, EMFILE, ENFILE}) {
    EXPECT_TRUE(tells_of_shortage(error_of(number).message)) << number;
    EXPECT_FALSE(is_permanent(error_of(number))) << number;
  }
  for (const int number : {ENOENT, EACCES, EPERM, ENOSPC}) EXPECT_TRUE(is_permanent(error_of(number))) << number;
  EXPECT_FALSE(is_permanent({ErrorKind::kEngine, "a malformed frame"}));
}

TEST(Shortage, IsReadFromTheWordsOfOtherPrograms) {
  EXPECT_TRUE(tells_of_shortage("bwrap: Creating new namespace failed: Resource temporarily unavailable\n"));
  EXPECT_TRUE(tells_of_shortage("no program can be run here: [Errno 12] Cannot allocate memory"));
  EXPECT_TRUE(
      tells_of_shortage("no CUDA context can be made: a CUDA error: out of memory (CUDA_ERROR_OUT_OF_MEMORY in "
                        "cuDevicePrimaryCtxRetain)"));
  EXPECT_TRUE(tells_of_shortage("a CUDA error: CUDA out of memory. Tried to allocate 2.00 MiB."));
  EXPECT_FALSE(tells_of_shortage("No module named 'torch'"));
  EXPECT_FALSE(tells_of_shortage("bwrap: setting up uid map: Permission denied"));
}

}  // namespace
}  // namespace kcoral::executor
