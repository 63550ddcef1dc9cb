// Frames: what server, executor, zygote and runtime say to each other (docs/frames.md lists them).
//
// A frame is one packet on a Unix SOCK_SEQPACKET socket: a JSON object of at most limits::kFrameBytesMax bytes with a
// "type", and at most limits::kFrameFdsMax descriptors. Content never rides in the JSON: it comes as sealed memfds.
// What comes from a runtime is untrusted: receiving never blocks, never throws, and closes what it refuses.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral::executor {

struct Frame {
  nlohmann::json body;  // an object with a string "type"
  std::vector<UniqueFd> fds;

  std::string type() const { return body.at("type").get<std::string>(); }
};

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

/// Non-blocking on our side, blocking on theirs, close-on-exec on both.
Result<SocketPair> make_frame_sockets();

/// Sends one frame; `fds` stay the caller's. Waits while the socket is full (the other side is alive and reading);
/// kEngine when the peer is gone or the frame is too large.
Status send_frame(int socket, const nlohmann::json& body, const std::vector<int>& fds = {});

enum class Received { kFrame, kNothing, kClosed };

/// Takes the next frame without waiting. kEngine: the packet was no frame (malformed, too long, too many descriptors).
Result<Received> receive_frame(int socket, Frame& frame);

/// Parses a packet's bytes; the part of `receive_frame` that a fuzzer drives.
Result<nlohmann::json> parse_frame(std::string_view packet);

}  // namespace kcoral::executor
