#include "base/mutex.h"

#include <gtest/gtest.h>

#include <thread>

namespace kcoral {
namespace {

TEST(ConditionVariable, AWaitGivesTheMutexUpAndHoldsItAgain) {
  constexpr int kTurns = 1000;
  struct {
    Mutex mutex;
    ConditionVariable changed;
    int turn KCORAL_GUARDED_BY(mutex) = 0;
  } game;
  const auto play = [&game](int player) {
    const MutexLock lock(game.mutex);
    while (game.turn < kTurns) {
      if (game.turn % 2 == player) {
        ++game.turn;
        game.changed.notify_one();
      } else {
        game.changed.wait(game.mutex);
      }
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  const MutexLock lock(game.mutex);
  EXPECT_EQ(game.turn, kTurns);
}

TEST(ConditionVariable, AWaitEndsAtItsDeadline) {
  Mutex mutex;
  ConditionVariable changed;
  const SteadyTime deadline = Clock::system().now() + std::chrono::milliseconds(5);
  {
    const MutexLock lock(mutex);
    while (changed.wait_until(mutex, deadline)) {
    }
    EXPECT_GE(Clock::system().now(), deadline);
  }
  const MutexLock lock(mutex);  // given back once, and free again
}

}  // namespace
}  // namespace kcoral
