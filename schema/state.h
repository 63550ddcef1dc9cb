// The states of a request and the only moves between them: contract section 9.
#pragma once

#include <optional>
#include <string_view>

namespace kcoral::schema {

/// Values are stored in the database.
enum class State {
  kQueued = 0,
  kAssigned = 1,
  kRunning = 2,
  kCompleted = 3,
  kFailed = 4,
  kTimedOut = 5,
  kCancelled = 6,
  kInterrupted = 7,
  kRejected = 8,
};

inline constexpr int kStateCount = 9;

std::string_view wire_name(State state);
std::optional<State> state_from(std::string_view wire_name);
bool is_terminal(State state);

/// Terminal states never change. Back to queued: its executor or server died and attempts are left, or it could not be
/// started for want of memory or descriptors.
bool may_move(State from, State to);

}  // namespace kcoral::schema
