// How a command of ours speaks to the server of a data directory: lines of JSON over a Unix socket in it.
//
// It promises: only the server's user, and root, can speak over it; a socket that an earlier server left is in nobody's
// way; no path is too long for it.
//
// The client sends one line, {"command": "backup", "directory": PATH}. The server answers with any number of lines
// {"bytes_done": N, "bytes_total": N}, the first at once, and then one with "result" or "error". Whoever hangs up
// before has given up.
//
// The functions are thread-safe; a ControlConnection has one owner.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral::server {

/// Requires: the caller has the lock of the data directory.
Result<UniqueFd> listen_for_commands(const std::string& data_dir);

class ControlConnection {
 public:
  /// To the server of a data directory. kEnvironment, in one line, if there is none.
  static Result<ControlConnection> connect(const std::string& data_dir);
  /// The next one at a listening socket; nullopt if there is none after all, or it is not permitted.
  static std::optional<ControlConnection> accept(int listener);

  /// Blocks until there is a whole line; nullopt at the end, after `deadline`, when `interrupt` becomes readable, and
  /// if the line is no JSON object.
  std::optional<nlohmann::json> receive(std::optional<SteadyTime> deadline = std::nullopt, int interrupt = -1);
  /// Blocks for a moment at most: whoever does not read is given up. What is not UTF-8 in a text arrives as another.
  void send(const nlohmann::json& line);
  /// Only if there is room for it.
  void send_if_read(const nlohmann::json& line);
  bool has_hung_up() const;

 private:
  explicit ControlConnection(UniqueFd socket) : socket_(std::move(socket)) {}

  UniqueFd socket_;
  std::string received_;
};

}  // namespace kcoral::server
