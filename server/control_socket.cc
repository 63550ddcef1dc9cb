#include "server/control_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/files.h"
#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr std::string_view kSocketName = "control.sock";
constexpr int kBacklog = 16;
constexpr timeval kSendPatience = {.tv_sec = 2, .tv_usec = 0};

/// The address has room for 107 bytes; by way of the directory's descriptor every path fits.
sockaddr_un address_in(int directory) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = fmt::format("/proc/self/fd/{}/{}", directory, kSocketName);
  KCORAL_CHECK(path.size() < sizeof address.sun_path);
  std::ranges::copy(path, address.sun_path);
  return address;
}

UniqueFd new_socket(int flags) { return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)); }

std::string text_of(const json& line) { return line.dump(-1, ' ', true, json::error_handler_t::replace) + "\n"; }

}  // namespace

Result<UniqueFd> listen_for_commands(const std::string& data_dir) {
  const UniqueFd directory = open_directory(data_dir);
  if (!directory) return fail_errno("open", data_dir);
  const std::string name(kSocketName);
  if (::unlinkat(directory.get(), name.c_str(), 0) != 0 && errno != ENOENT) return fail_errno("unlink", name);
  UniqueFd listener = new_socket(SOCK_NONBLOCK);
  if (!listener) return fail_errno("socket");
  const sockaddr_un address = address_in(directory.get());
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail_errno("bind", name);
  }
  // Nobody can connect before it listens.
  if (::fchmodat(directory.get(), name.c_str(), 0600, 0) != 0) return fail_errno("chmod", name);
  if (::listen(listener.get(), kBacklog) != 0) return fail_errno("listen", name);
  return listener;
}

Result<ControlConnection> ControlConnection::connect(const std::string& data_dir) {
  const auto unreachable = [&](int number) {
    const char* why = number == EACCES || number == EPERM
                          ? "not permitted: run this as the server's user, or as root"
                          : "no server that is ready runs there: start it, or name another with --data-dir";
    return fail(ErrorKind::kEnvironment, "the data directory {}: {}", data_dir, why);
  };
  const UniqueFd directory = open_directory(data_dir);
  if (!directory && errno == ENOENT) {
    return fail(ErrorKind::kEnvironment, "there is no data directory {}: name the server's with --data-dir", data_dir);
  }
  if (!directory) return unreachable(errno);
  UniqueFd socket = new_socket(0);
  if (!socket) return fail_errno("socket");
  const sockaddr_un address = address_in(directory.get());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return unreachable(errno);
  }
  return ControlConnection(std::move(socket));
}

std::optional<ControlConnection> ControlConnection::accept(int listener) {
  UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return std::nullopt;
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool is_known = ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (!is_known || (peer.uid != 0 && peer.uid != ::geteuid())) return std::nullopt;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kSendPatience, sizeof kSendPatience);
  return ControlConnection(std::move(socket));
}

std::optional<json> ControlConnection::receive(std::optional<SteadyTime> deadline, int interrupt) {
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      json line = json::parse(received_.begin(), received_.begin() + static_cast<ptrdiff_t>(end), nullptr, false);
      received_.erase(0, end + 1);
      return line.is_object() ? std::optional(std::move(line)) : std::nullopt;
    }
    if (received_.size() > limits::kControlLineBytesMax) return std::nullopt;
    int timeout_ms = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::system().now());
      timeout_ms = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    std::array<pollfd, 2> waited = {pollfd{socket_.get(), POLLIN, 0}, pollfd{interrupt, POLLIN, 0}};
    const int ready = ::poll(waited.data(), waited.size(), timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || waited[1].revents != 0) return std::nullopt;
    std::array<char, 4096> buffer;
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    received_.append(buffer.data(), static_cast<size_t>(got));
  }
}

void ControlConnection::send(const json& line) {
  const std::string text = text_of(line);
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t some = ::send(socket_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (some < 0 && errno == EINTR) continue;
    if (some <= 0) return;
    sent += static_cast<size_t>(some);
  }
}

void ControlConnection::send_if_read(const json& line) {
  pollfd writable{socket_.get(), POLLOUT, 0};
  if (::poll(&writable, 1, 0) == 1 && (writable.revents & POLLOUT) != 0) send(line);
}

bool ControlConnection::has_hung_up() const {
  pollfd socket{socket_.get(), POLLRDHUP, 0};
  return ::poll(&socket, 1, 0) > 0;
}

}  // namespace kcoral::server
