#include "bench/http_load.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace kcoral::bench {
namespace {

std::string request_text(const std::string& path, const std::string& program) {
  const std::string body =
      "--b\r\nContent-Disposition: form-data; name=\"program\"\r\nContent-Type: application/json\r\n\r\n" + program +
      "\r\n--b--\r\n";
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
      "Content-Length: {}\r\n\r\n{}",
      path, body.size(), body);
}

class Connection {
 public:
  static Result<Connection> open(uint16_t port) {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      return fail_errno("connect");
    return Connection(std::move(socket));
  }

  /// Sends a request and answers the response's body.
  Result<std::string> exchange(const std::string& request) {
    for (size_t sent = 0; sent < request.size();) {
      const ssize_t n = ::send(socket_.get(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return fail_errno("send");
      sent += static_cast<size_t>(n);
    }
    std::string received;
    size_t body_start = std::string::npos;
    size_t length = 0;
    while (body_start == std::string::npos || received.size() < body_start + length) {
      char buffer[16384];
      const ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, 0);
      if (n <= 0) return fail(ErrorKind::kEnvironment, "the server closed the connection");
      received.append(buffer, static_cast<size_t>(n));
      if (body_start != std::string::npos) continue;
      const size_t head_end = received.find("\r\n\r\n");
      if (head_end == std::string::npos) continue;
      body_start = head_end + 4;
      const size_t field = received.find("Content-Length: ");
      length = std::stoull(received.substr(field + 16));
    }
    return received.substr(body_start);
  }

 private:
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

/// What the clients' threads bring together.
struct Measured {
  Mutex mutex;
  Series all KCORAL_GUARDED_BY(mutex);
  std::optional<Error> error KCORAL_GUARDED_BY(mutex);
};

}  // namespace

Result<Series> run_load(const Load& load) {
  const std::string request = request_text(load.path, load.program);
  Measured measured;
  const Stopwatch whole;
  const auto duration_ms = static_cast<double>(load.duration.count());
  auto client = [&] {
    std::vector<double> latencies;
    auto connection = Connection::open(load.port);
    std::optional<Error> failure;
    if (!connection) failure = connection.error();
    while (!failure && whole.ms() < duration_ms) {
      const Stopwatch watch;
      auto body = connection->exchange(request);
      latencies.push_back(watch.ms());
      if (!body) {
        failure = body.error();
      } else if (body->find(load.expected) == std::string::npos) {
        failure = Error{ErrorKind::kEngine, body->substr(0, 500)};
      }
    }
    const MutexLock lock(measured.mutex);
    measured.all.ms.insert(measured.all.ms.end(), latencies.begin(), latencies.end());
    if (failure && !measured.error) measured.error = failure;
  };
  std::vector<std::thread> clients;
  for (int i = 0; i < load.clients; ++i) clients.emplace_back(client);
  for (std::thread& thread : clients) thread.join();
  const MutexLock lock(measured.mutex);
  if (measured.error) return fail(*measured.error);
  measured.all.seconds = whole.ms() / 1e3;
  return std::move(measured.all);
}

}  // namespace kcoral::bench
