// Where a server listens: a host as an operator writes it, resolved once. Pure apart from the look-up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kcoral::gateway {

struct ListenAddress {
  std::string host;  // as the operator wrote it, for messages
  uint16_t port = 0;
  std::string literal;    // "127.0.0.1", "[::1]"
  bool loopback = false;  // is_loopback_host

  /// kEnvironment, with one line that names host and port, if there is no such host.
  static Result<ListenAddress> resolve(const std::string& host, uint16_t port);
};

/// Addresses of 127.0.0.0/8 (also mapped into IPv6), "::1", "localhost" and names below it. Lowercase, without port and
/// brackets.
bool is_loopback_host(std::string_view host);

}  // namespace kcoral::gateway
