#include "gateway/io_thread.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

namespace kcoral::gateway {
namespace {

using std::chrono::seconds;

TEST(TimerQueue, RunsWhatIsDueInOrder) {
  TimerQueue timers;
  const SteadyTime start{};
  std::string ran;
  timers.add(start + seconds(2), [&] { ran += "2"; });
  timers.add(start + seconds(1), [&] { ran += "1"; });
  const auto cancelled = timers.add(start + seconds(1), [&] { ran += "x"; });
  timers.add(start + seconds(3), [&] { ran += "3"; });
  timers.cancel(cancelled);
  EXPECT_EQ(timers.next(), start + seconds(1));
  timers.run_due(start + seconds(2));
  EXPECT_EQ(ran, "12");
  timers.run_due(start + seconds(3));
  EXPECT_EQ(ran, "123");
  EXPECT_EQ(timers.next(), std::nullopt);
  timers.cancel(cancelled);
}

TEST(TimerQueue, CallbacksMayAddAndCancel) {
  TimerQueue timers;
  const SteadyTime start{};
  std::string ran;
  TimerQueue::Id second = 0;
  timers.add(start, [&] {
    timers.cancel(second);
    timers.add(start, [&] { ran += "added"; });
  });
  second = timers.add(start, [&] { ran += "cancelled"; });
  timers.run_due(start);
  EXPECT_EQ(ran, "added");
}

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(Mailbox, RingsOnceAndDeliversInOrder) {
  const auto mailbox = *Mailbox::create();
  std::string delivered;
  for (const char* letter : {"a", "b", "c"}) mailbox->post([&delivered, letter] { delivered += letter; });
  EXPECT_TRUE(is_readable(mailbox->wakeup_fd()));
  mailbox->deliver();
  EXPECT_EQ(delivered, "abc");
  EXPECT_FALSE(is_readable(mailbox->wakeup_fd()));
}

TEST(Mailbox, ALetterPostedFromALetterWaitsForTheNextRound) {
  const auto mailbox = *Mailbox::create();
  int rounds = 0;
  mailbox->post([&] { mailbox->post([&] { ++rounds; }); });
  mailbox->deliver();
  EXPECT_EQ(rounds, 0);
  EXPECT_TRUE(is_readable(mailbox->wakeup_fd()));
  mailbox->deliver();
  EXPECT_EQ(rounds, 1);
}

TEST(Mailbox, LosesNothingBetweenThreads) {
  const auto mailbox = *Mailbox::create();
  constexpr int kThreads = 4;
  constexpr int kLetters = 5000;
  int delivered = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kLetters; ++k) mailbox->post([&] { ++delivered; });
    });
  }
  while (delivered < kThreads * kLetters) {
    pollfd entry{mailbox->wakeup_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 30'000), 1) << "a letter without a ring";
    mailbox->deliver();
  }
  for (auto& thread : threads) thread.join();
}

TEST(Mailbox, DropsLettersOnceItIsClosed) {
  const auto mailbox = *Mailbox::create();
  const auto held = std::make_shared<int>(0);
  mailbox->post([held] { ++*held; });
  mailbox->close();
  mailbox->post([held] { ++*held; });
  mailbox->deliver();
  EXPECT_EQ(*held, 0);
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace kcoral::gateway
