#include "devices/process_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace kcoral::devices {
namespace {

using testing::Contains;

TEST(ProcessTable, KnowsThisProcess) {
  ASSERT_EQ(::prctl(PR_SET_NAME, "a b) (c"), 0);
  const auto self = ProcessTable::system().find(::getpid());
  ASSERT_TRUE(self);
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_EQ(self->name, "a b) (c");
  EXPECT_EQ(self->depth, ProcessTable::system().own_depth());
  EXPECT_THAT(ProcessTable::system().list(), Contains(::getpid()));
}

TEST(ProcessTable, HasNoProcessThatDoesNotExist) {
  EXPECT_FALSE(ProcessTable::system().find(0));
  EXPECT_FALSE(ProcessTable::system().find(-1));
  EXPECT_FALSE(ProcessTable::system().find(1 << 30));
}

}  // namespace
}  // namespace kcoral::devices
