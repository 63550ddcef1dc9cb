#include "executor/frame.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * limits::kFrameFdsMax);
constexpr int kInFlightPauseMs = 5;

/// Takes every descriptor of a message, so that each is closed whatever becomes of the message.
std::vector<UniqueFd> take_fds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
      // Closing must never block, and a socket of a program's that lingers would. Of what is no socket it is refused.
      const linger at_once{0, 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

Status check_frame_fds(size_t count) {
  if (count > limits::kFrameFdsMax) {
    return fail(ErrorKind::kEngine, "a frame cannot carry {} descriptors; at most {}", count, limits::kFrameFdsMax);
  }
  return {};
}

}  // namespace

Result<SocketPair> make_frame_sockets() {
  std::array<int, 2> sockets;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0) return fail_errno("socketpair");
  SocketPair pair{UniqueFd(sockets[0]), UniqueFd(sockets[1])};
  if (::fcntl(pair.ours.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl", "socket");
  return pair;
}

Result<std::string> render_frame(const nlohmann::json& body) {
  std::string packet = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (packet.size() > limits::kFrameBytesMax) {
    return fail(ErrorKind::kEngine, "a frame of {} bytes is too large; at most {}", packet.size(),
                limits::kFrameBytesMax);
  }
  return packet;
}

Result<Sent> try_send_packet(int socket, std::string_view packet, const std::vector<int>& fds) {
  if (auto allowed = check_frame_fds(fds.size()); !allowed) return fail(allowed.error());
  iovec bytes{const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) std::array<char, kControlBytes> control{};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Sent::kSent;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Sent::kFull;
    if (errno == ETOOMANYREFS) return Sent::kTooManyInFlight;
    return fail_errno("send", "frame", ErrorKind::kEngine);
  }
}

Status send_frame(int socket, const nlohmann::json& body, const std::vector<int>& fds) {
  auto packet = render_frame(body);
  if (!packet) return fail(packet.error());
  for (;;) {
    auto sent = try_send_packet(socket, *packet, fds);
    if (!sent) return fail(sent.error());
    if (*sent == Sent::kSent) return {};
    if (*sent == Sent::kTooManyInFlight) {
      ::poll(nullptr, 0, kInFlightPauseMs);
    } else {
      pollfd writable{socket, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    }
  }
}

Result<Received> receive_frame(int socket, Frame& frame) {
  // One byte more than a frame may have, so that a longer one is seen even where MSG_TRUNC is not reported.
  thread_local std::array<char, limits::kFrameBytesMax + 1> buffer;
  alignas(cmsghdr) std::array<char, kControlBytes> control;
  iovec bytes{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size;
  do {
    size = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // ECONNRESET is said once when a peer died without having read everything; what it had sent comes after it.
  } while (size < 0 && (errno == EINTR || errno == ECONNRESET));
  if (size < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Received::kNothing;
    return fail_errno("receive", "frame", ErrorKind::kEngine);
  }
  std::vector<UniqueFd> fds = take_fds(message);
  if (size == 0 && fds.empty()) return Received::kClosed;
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return fail(ErrorKind::kEngine,
                "a frame lost descriptors: it carried more than {}, or this process has no more left",
                limits::kFrameFdsMax);
  }
  if ((message.msg_flags & MSG_TRUNC) != 0 || static_cast<size_t>(size) > limits::kFrameBytesMax) {
    return fail(ErrorKind::kEngine, "a packet of more than {} bytes is no frame", limits::kFrameBytesMax);
  }
  if (auto allowed = check_frame_fds(fds.size()); !allowed) return fail(allowed.error());
  auto body = parse_frame(std::string_view(buffer.data(), static_cast<size_t>(size)));
  if (!body) return fail(body.error());
  frame.body = std::move(*body);
  frame.fds = std::move(fds);
  return Received::kFrame;
}

Result<nlohmann::json> parse_frame(std::string_view packet) {
  auto body = nlohmann::json::parse(packet, nullptr, /*allow_exceptions=*/false);
  if (body.is_discarded()) return fail(ErrorKind::kEngine, "a packet is no JSON");
  if (!body.is_object()) return fail(ErrorKind::kEngine, "a frame is a JSON object, not {}", body.type_name());
  const auto type = body.find("type");
  if (type == body.end() || !type->is_string()) return fail(ErrorKind::kEngine, "a frame has no string \"type\"");
  return body;
}

}  // namespace kcoral::executor
