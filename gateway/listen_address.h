// Where a server listens: a host as an operator writes it, resolved once. Pure apart from the look-up.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace kcoral::gateway {

struct ListenAddress {
  std::string host;  // as the operator wrote it, for messages
  uint16_t port = 0;
  std::string literal;  // "127.0.0.1", "[::1]"
  bool loopback = false;

  /// kEnvironment, with one line that names host and port, if there is no such host.
  static Result<ListenAddress> resolve(const std::string& host, uint16_t port);
};

}  // namespace kcoral::gateway
