#include "schema/state.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

namespace kcoral::schema {
namespace {

constexpr std::array<State, kStateCount> kAll = {State::kQueued,    State::kAssigned,    State::kRunning,
                                                 State::kCompleted, State::kFailed,      State::kTimedOut,
                                                 State::kCancelled, State::kInterrupted, State::kRejected};

// Rows: from; columns: to; in the order of kAll. An x is a legal move.
constexpr std::array<std::string_view, kStateCount> kMoves = {
    ".x....x.x",  // queued
    "x.xxxxxx.",  // assigned
    "x..xxxxx.",  // running
    ".........",  // completed
    ".........",  // failed
    ".........",  // timed_out
    ".........",  // cancelled
    ".........",  // interrupted
    ".........",  // rejected
};

TEST(StateTest, MovesAreExactlyTheTable) {
  for (size_t from = 0; from < kAll.size(); ++from) {
    for (size_t to = 0; to < kAll.size(); ++to) {
      EXPECT_EQ(may_move(kAll[from], kAll[to]), kMoves[from][to] == 'x')
          << wire_name(kAll[from]) << " -> " << wire_name(kAll[to]);
    }
  }
}

TEST(StateTest, TerminalStatesAreThoseThatNothingFollows) {
  for (size_t from = 0; from < kAll.size(); ++from) {
    const bool has_next = kMoves[from].find('x') != std::string_view::npos;
    EXPECT_EQ(is_terminal(kAll[from]), !has_next) << wire_name(kAll[from]);
  }
}

TEST(StateTest, WireNamesAreThoseOfTheContractAndReadBack) {
  const std::array<std::string_view, kStateCount> names = {
      "queued", "assigned", "running", "completed", "failed", "timed_out", "cancelled", "interrupted", "rejected"};
  for (size_t i = 0; i < kAll.size(); ++i) {
    EXPECT_EQ(wire_name(kAll[i]), names[i]);
    EXPECT_EQ(state_from(names[i]), kAll[i]);
  }
}

TEST(StateTest, OtherNamesAreNoStates) {
  for (const std::string_view name : {"", "Queued", "queued ", "timed-out", "done"}) {
    EXPECT_EQ(state_from(name), std::nullopt) << name;
  }
}

TEST(StateTest, StoredValuesDoNotChange) {
  for (size_t i = 0; i < kAll.size(); ++i) EXPECT_EQ(static_cast<size_t>(kAll[i]), i);
}

TEST(StateDeathTest, AValueFromOutsideTheEnumBreaksAnInvariant) {
  EXPECT_DEATH((void)wire_name(static_cast<State>(kStateCount)), "broken invariant");
  EXPECT_DEATH((void)may_move(State::kQueued, static_cast<State>(-1)), "broken invariant");
}

}  // namespace
}  // namespace kcoral::schema
