#include "gateway/listen_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

namespace kcoral::gateway {
namespace {

/// "localhost" may stand for both families: the older one is what every client tries.
const addrinfo* choose(const addrinfo* found) {
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET) return entry;
  }
  return found;
}

}  // namespace

bool is_loopback_host(std::string_view host_text) {
  const std::string host(host_text);
  if (host == "localhost" || host.ends_with(".localhost")) return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Result<ListenAddress> ListenAddress::resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0) {
    return fail(ErrorKind::kEnvironment, "cannot listen on {}:{}: {}", host, port, ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  const addrinfo* chosen = choose(found);
  ListenAddress address{host, port, {}, false};
  char text[INET6_ADDRSTRLEN] = {};
  if (chosen->ai_family == AF_INET) {
    const in_addr& v4 = reinterpret_cast<const sockaddr_in*>(chosen->ai_addr)->sin_addr;
    ::inet_ntop(AF_INET, &v4, text, sizeof(text));
    address.literal = text;
  } else {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(chosen->ai_addr)->sin6_addr;
    ::inet_ntop(AF_INET6, &v6, text, sizeof(text));
    address.literal = fmt::format("[{}]", text);
  }
  address.loopback = is_loopback_host(text);
  return address;
}

}  // namespace kcoral::gateway
