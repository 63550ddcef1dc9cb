#include "executor/supervisor/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <vector>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

constexpr uint64_t kHeld = 64 * limits::kMiB;
constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

/// Anonymous memory that was written to.
class Held {
 public:
  Held() : memory_(::mmap(nullptr, kHeld, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(memory_, MAP_FAILED);
    std::memset(memory_, 1, kHeld);
  }
  ~Held() { ::munmap(memory_, kHeld); }

 private:
  void* memory_;
};

/// Forks of this process that live until this object goes.
class Children {
 public:
  explicit Children(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        for (;;) ::pause();
      }
      children_.push_back(child);
    }
  }
  ~Children() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  const std::vector<pid_t>& pids() const { return children_; }

 private:
  std::vector<pid_t> children_;
};

TEST(ProcessMemory, GrowsWithWhatIsWrittenTo) {
  const uint64_t before = memory_of({::getpid()}, 0);
  const Held held;
  const uint64_t after = memory_of({::getpid()}, 0);
  EXPECT_GE(after, before + kHeld * 9 / 10);
  EXPECT_LE(after, before + kHeld * 11 / 10);
}

TEST(ProcessMemory, WhatForksShareCountsOnceWhereItMatters) {
  const Held held;
  const uint64_t alone = memory_of({::getpid()}, 0);
  const Children children(3);
  EXPECT_LE(memory_of({::getpid()}, alone + kHeld), alone + kHeld);
  // What is enough anyway is not looked at closely.
  EXPECT_GE(memory_of({::getpid()}, kNever), alone + 2 * kHeld);
}

TEST(ProcessMemory, DescendantsCountAndEachOnlyOnce) {
  ASSERT_TRUE(descendants_are_told());
  const Children children(1);
  const pid_t child = children.pids()[0];
  // Both go on, so the figures differ a little from one look to the next.
  const uint64_t both = memory_of({::getpid()}, kNever), only_child = memory_of({child}, kNever);
  EXPECT_GT(both, only_child);
  EXPECT_LT(memory_of({::getpid(), child}, kNever), both + only_child / 2);
}

TEST(ProcessMemory, WhatHasEndedHoldsNothing) {
  pid_t ended = 0;
  {
    const Children children(1);
    ended = children.pids()[0];
  }
  EXPECT_EQ(memory_of({ended}, 0), 0u);
}

}  // namespace
}  // namespace kcoral::executor
