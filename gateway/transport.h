// The sockets: Pistache's listener and reactors under our own transport.
//
// Pistache accepts, spreads connections over its I/O threads and polls; reading, writing, time limits and the way in
// which other threads reach a connection are ours (gateway/pistache.h says why). Connections beyond the cap are
// accepted and closed at once, so that neither descriptors nor the accept loop run out.
//
// Transport is thread-safe; SocketOwners are made and used on their I/O thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "gateway/io_thread.h"
#include "gateway/listen_address.h"

namespace kcoral::gateway {

struct TransportConfig {
  ListenAddress address;
  int io_threads = 2;
  size_t connections_max = 0;  // also never more than half of the descriptors that the process may have
};

/// Makes the owner of an accepted socket, on the I/O thread that it will live on.
using SocketOwnerFactory =
    std::function<std::shared_ptr<SocketOwner>(IoThread& io, int fd, const std::string& peer_host, uint16_t peer_port)>;

class Transport {
 public:
  /// Returns once every I/O thread runs. kEnvironment, with one line that names host and port, if the address cannot be
  /// bound. `factory` must stay usable until the transport is destroyed.
  static Result<std::unique_ptr<Transport>> listen(const TransportConfig& config, Clock& clock,
                                                   SocketOwnerFactory factory);

  virtual ~Transport() = default;

  virtual uint16_t port() const = 0;
  /// Takes no more connections, lets answers being sent go out for at most `flush_wait`, then closes everything and
  /// ends the threads. The second call does nothing.
  virtual void stop(std::chrono::milliseconds flush_wait) = 0;
};

}  // namespace kcoral::gateway
