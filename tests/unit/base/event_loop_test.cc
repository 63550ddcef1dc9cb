#include "base/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <thread>

namespace kcoral {
namespace {

using namespace std::chrono_literals;

class EventLoopTest : public testing::Test {
 protected:
  std::unique_ptr<EventLoop> loop_ = std::move(*EventLoop::create());
};

TEST_F(EventLoopTest, RunsPostedFunctionsInOrderFromAnyThread) {
  std::vector<int> seen;
  std::thread poster([&] {
    for (int i = 0; i < 1000; ++i) loop_->post([&, i] { seen.push_back(i); });
    loop_->post([&] { loop_->stop(); });
  });
  loop_->run();
  poster.join();
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_F(EventLoopTest, TimersRunInTheOrderOfTheirTimes) {
  std::vector<int> seen;
  loop_->run_after(3ms, [&] { seen.push_back(3); });
  loop_->run_after(1ms, [&] { seen.push_back(1); });
  loop_->run_after(2ms, [&] { seen.push_back(2); });
  loop_->run_after(4ms, [&] { loop_->stop(); });
  loop_->run();
  EXPECT_EQ(seen, (std::vector{1, 2, 3}));
}

TEST_F(EventLoopTest, ACancelledTimerNeverRuns) {
  bool ran = false;
  EventLoop::TimerId victim = 0;
  loop_->run_after(0ms, [&] { loop_->cancel(victim); });
  victim = loop_->run_after(1ms, [&] { ran = true; });
  loop_->run_after(2ms, [&] { loop_->stop(); });
  loop_->run();
  EXPECT_FALSE(ran);
}

TEST_F(EventLoopTest, CallbacksMayUnwatchEachOther) {
  UniqueFd first(::eventfd(1, EFD_CLOEXEC));
  UniqueFd second(::eventfd(1, EFD_CLOEXEC));
  int calls = 0;
  auto once = [&](uint32_t) {
    ++calls;
    loop_->unwatch(first.get());
    loop_->unwatch(second.get());
    loop_->stop();
  };
  ASSERT_TRUE(loop_->watch(first.get(), EPOLLIN, once));
  ASSERT_TRUE(loop_->watch(second.get(), EPOLLIN, once));
  loop_->run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, AnEventOfAClosedDescriptorNeverReachesTheNextOneWithItsNumber) {
  UniqueFd first(::eventfd(1, EFD_CLOEXEC));
  UniqueFd second(::eventfd(1, EFD_CLOEXEC));
  bool reached = false;
  // Whichever comes first closes the other and watches a silent descriptor that gets the same number.
  auto replace = [&](UniqueFd& own, UniqueFd& other) {
    const int number = other.get();
    loop_->unwatch(own.get());
    loop_->unwatch(number);
    other.reset();
    other.reset(::eventfd(0, EFD_CLOEXEC));
    ASSERT_EQ(other.get(), number);
    ASSERT_TRUE(loop_->watch(number, EPOLLIN, [&](uint32_t) { reached = true; }));
    loop_->run_after(1ms, [&] { loop_->stop(); });
  };
  ASSERT_TRUE(loop_->watch(first.get(), EPOLLIN, [&](uint32_t) { replace(first, second); }));
  ASSERT_TRUE(loop_->watch(second.get(), EPOLLIN, [&](uint32_t) { replace(second, first); }));
  loop_->run();
  EXPECT_FALSE(reached);
}

TEST_F(EventLoopTest, WatchingAClosedDescriptorIsAnError) {
  EXPECT_FALSE(loop_->watch(-1, EPOLLIN, [](uint32_t) {}));
}

}  // namespace
}  // namespace kcoral
