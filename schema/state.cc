#include "schema/state.h"

#include <array>
#include <cstddef>

#include "base/error.h"

namespace kcoral::schema {
namespace {

constexpr unsigned bit(State state) { return 1U << static_cast<unsigned>(state); }

struct StateInfo {
  std::string_view wire_name;
  unsigned next;  // bits of the states that may follow; none: terminal
};

constexpr unsigned kEndings = bit(State::kCompleted) | bit(State::kFailed) | bit(State::kTimedOut) |
                              bit(State::kCancelled) | bit(State::kInterrupted);

// Assigned → an ending: what it needs can no longer be read, or `running` shares a later commit.
constexpr std::array<StateInfo, kStateCount> kStates{{
    {"queued", bit(State::kAssigned) | bit(State::kCancelled) | bit(State::kRejected)},
    {"assigned", bit(State::kRunning) | bit(State::kQueued) | kEndings},
    {"running", bit(State::kQueued) | kEndings},
    {"completed", 0},
    {"failed", 0},
    {"timed_out", 0},
    {"cancelled", 0},
    {"interrupted", 0},
    {"rejected", 0},
}};

const StateInfo& info_of(State state) {
  const auto index = static_cast<size_t>(state);
  KCORAL_CHECK(index < kStates.size());
  return kStates[index];
}

}  // namespace

std::string_view wire_name(State state) { return info_of(state).wire_name; }

std::optional<State> state_from(std::string_view wire_name) {
  for (size_t i = 0; i < kStates.size(); ++i) {
    if (kStates[i].wire_name == wire_name) return static_cast<State>(i);
  }
  return std::nullopt;
}

bool is_terminal(State state) { return info_of(state).next == 0; }

bool may_move(State from, State to) {
  (void)info_of(to);
  return (info_of(from).next & bit(to)) != 0;
}

}  // namespace kcoral::schema
