// Frames: what server, executor, zygote and runtime say to each other (docs/frames.md lists them).
//
// A frame is one packet on a Unix SOCK_SEQPACKET socket: a JSON object of at most limits::kFrameBytesMax bytes with a
// "type", and at most limits::kFrameFdsMax descriptors. Content never rides in the JSON: it comes as sealed memfds.
// What comes from a runtime is untrusted: receiving never blocks, never throws, and closes what it refuses.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral::executor {

/// Where an executor finds its end of the socket to the server when it starts.
inline constexpr int kServerFd = 3;

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

/// The bytes of a frame's packet; kEngine when they are too many. Text that is not UTF-8 is replaced, never an error.
Result<std::string> render_frame(const nlohmann::json& body);

/// kFull: the socket is; it becomes writable when the peer reads. kTooManyInFlight: the kernel carries as many
/// descriptors for this user as it may; there is no event for the end of that, so try again later.
enum class Sent { kSent, kFull, kTooManyInFlight };

/// Sends one rendered frame without waiting; kEngine when the peer is gone.
Result<Sent> try_send_packet(int socket, std::string_view packet, const std::vector<int>& fds);

enum class Received { kFrame, kNothing, kClosed };

/// Takes the next frame without waiting. kEngine: the packet was no frame (malformed, too long, too many descriptors).
/// What a peer sent before it closed or died is received before kClosed. An empty packet cannot be told from the end.
Result<Received> receive_frame(int socket, Frame& frame);

/// Parses a packet's bytes; the part of `receive_frame` that a fuzzer drives.
Result<nlohmann::json> parse_frame(std::string_view packet);

}  // namespace kcoral::executor
