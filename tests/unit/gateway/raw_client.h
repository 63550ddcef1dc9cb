// A client that sends exactly the bytes it is told to, and reads answers one by one. Every wait has a deadline.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "gateway/ascii.h"

namespace kcoral::gateway {

struct RawAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // lowercase names
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0) {
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << std::strerror(errno);
  }

  int fd() const { return fd_.get(); }

  /// False once the server does not take it any more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      if (!wait(POLLOUT)) return false;
      const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void close_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  void close() { fd_.reset(); }
  /// As a process that is killed with unread data does it.
  void reset() {
    const linger hard{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    fd_.reset();
  }

  /// The next answer; nullopt when the connection ends or nothing comes. `head_only`: the answer to HEAD.
  std::optional<RawAnswer> read_answer(bool head_only = false) {
    size_t end;
    while ((end = input_.find("\r\n\r\n")) == std::string::npos) {
      if (!receive()) return std::nullopt;
    }
    RawAnswer answer;
    std::string_view head = std::string_view(input_).substr(0, end + 2);
    answer.status = std::atoi(std::string(head.substr(9, 3)).c_str());
    head.remove_prefix(head.find("\r\n") + 2);
    while (!head.empty()) {
      const std::string_view line = head.substr(0, head.find("\r\n"));
      head.remove_prefix(line.size() + 2);
      const size_t colon = line.find(':');
      answer.headers[ascii_lowercase(line.substr(0, colon))] = trim_blanks(line.substr(colon + 1));
    }
    input_.erase(0, end + 4);
    const size_t length = head_only || answer.status == 100 ? 0 : std::stoull("0" + answer.header("content-length"));
    while (input_.size() < length) {
      if (!receive()) return std::nullopt;
    }
    answer.body = input_.substr(0, length);
    input_.erase(0, length);
    return answer;
  }

  /// True once the server has closed and nothing was left to read.
  bool at_end() {
    if (!input_.empty()) return false;
    while (receive()) {
    }
    return ended_ && input_.empty();
  }

  /// Reads once into the buffer; false at the end or after the deadline.
  bool receive(size_t bytes_max = 1 << 20) {
    if (!wait(POLLIN)) return false;
    const size_t before = input_.size();
    input_.resize(before + bytes_max);
    const ssize_t count = ::recv(fd_.get(), input_.data() + before, bytes_max, 0);
    input_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    ended_ = count <= 0;
    return count > 0;
  }
  std::string& input() { return input_; }

 private:
  bool wait(short events) {
    pollfd entry{fd_.get(), events, 0};
    return ::poll(&entry, 1, 30'000) == 1;
  }

  UniqueFd fd_;
  std::string input_;
  bool ended_ = false;
};

}  // namespace kcoral::gateway
