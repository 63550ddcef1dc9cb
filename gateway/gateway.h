// The gateway: HTTP in front of the store (contract sections 1, 2, 5, 7, 8, 9 and 11).
//
// It promises: every request is answered with a body of the contract and the id that it was sent with; an answer
// reaches the client that asked or nobody; memory is bounded by what is configured, never by what a client sends
// (bodies by one budget over all of them, a connection's unread input by limits::kReadBytes); a program whose client
// went away runs on for a while (`abandoned_after`), and then only if somebody waits for it or it was submitted to be
// asked for later.
//
// Gateway is thread-safe. The store, the clock and what the facts use must outlive it. The gateway never calls the
// scheduler.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/metrics.h"
#include "schema/limits.h"
#include "schema/program.h"
#include "store/store.h"

namespace kcoral::gateway {

struct GatewayConfig {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: a free one
  int io_threads = 2;
  uint64_t request_bytes_max = limits::kRequestBytesMax;
  // Of programs and blobs being received, all connections together, until the store has taken them over; what finds no
  // room is answered 503 busy. At least one body of `request_bytes_max` has room, whatever is said here.
  uint64_t bodies_bytes_max = limits::kBodiesBytesMax;
  // Blobs of these bodies; also never more than an eighth of the descriptors that the process may have. The store's
  // hot blobs have a quarter and connections half, so that some are left.
  size_t staged_blobs_max = limits::kStagedBlobsMax;
  std::vector<std::string> allowed_hosts;  // see OriginPolicy
  std::chrono::milliseconds worker_wait = limits::kWorkerWait;
  // How long nobody may have waited for what POST /execute sent before it is cancelled; nullopt: for ever.
  std::optional<std::chrono::milliseconds> abandoned_after = limits::kAbandonedAfter;
  schema::ProgramBounds bounds;

  // Also never more than half of the descriptors that the process may have: main raises RLIMIT_NOFILE first.
  size_t connections_max = limits::kConnectionsMax;
  std::chrono::milliseconds head_timeout = limits::kHeadTimeout;
  std::chrono::milliseconds stall_timeout = limits::kBodyStallTimeout;
  std::chrono::milliseconds idle_timeout = limits::kIdleTimeout;
  std::chrono::milliseconds half_closed_probe = limits::kHalfClosedProbe;
  std::chrono::milliseconds stop_flush_wait = std::chrono::seconds(5);  // for answers being sent when it stops
};

/// An executor that is out of use, since processes of a program could not be ended.
struct QuarantinedExecutor {
  std::string name;
  WallTime since{};
  std::string reason;
};

struct HealthFacts {
  std::string instance_id;
  WallTime started_at{};
  int gpu_count = 0;
  uint64_t request_capacity = 0;
  uint64_t requests_in_progress = 0;
  uint64_t requests_waiting = 0;
  std::vector<QuarantinedExecutor> quarantined;
  std::optional<std::string> arch;
  std::map<std::string, std::string> versions;
  std::string status = "ok";
};

/// A device as GET /gpus shows it; what the driver does not tell is not there.
struct GpuFacts {
  struct Holder {
    std::optional<std::string> request_id;  // none: a context is being made or ended
    std::string executor;
    WallTime since{};
  };
  struct Quarantine {
    WallTime since{};
    std::string reason;
  };
  int id = 0;
  std::string name;
  std::string uuid;
  std::string arch;
  uint64_t memory_bytes = 0;
  std::optional<uint64_t> memory_used_bytes;
  std::optional<unsigned> utilisation_percent;
  std::optional<unsigned> temperature_celsius;
  std::optional<unsigned> sm_clock_mhz;
  std::optional<Holder> holder;
  std::optional<Quarantine> quarantine;
  uint64_t waiters = 0;
  uint64_t handovers = 0;      // to somebody who waited for it
  double idle_between_ms = 0;  // in all of them, from one holder's end to the next one's grant
};

/// Of the leases that programs were granted.
struct LeaseFacts {
  HistogramView waited;
  HistogramView held;
};

/// What GET /metrics shows.
struct MetricsFacts {
  std::string version;
  WallTime started_at{};
  store::Counts requests;
  store::Figures store;
  std::vector<std::pair<std::string_view, size_t>> executors;  // how many are in each state, by its name
  std::optional<LeaseFacts> leases;                            // none on a CPU server
  std::vector<GpuFacts> gpus;
};

/// What the server knows. The functions are called on I/O threads, must not block, and may be called by several threads
/// at once.
struct Facts {
  std::function<HealthFacts()> health;
  std::function<std::vector<GpuFacts>()> gpus;
  std::function<MetricsFacts()> metrics;
};

class Gateway {
 public:
  /// Serves once it returns. kEnvironment, with one line that names host and port, if the address cannot be bound.
  static Result<std::unique_ptr<Gateway>> start(GatewayConfig config, store::Store& store, Clock& clock, Facts facts);

  /// Stops, if that was not done.
  virtual ~Gateway() = default;

  virtual uint16_t port() const = 0;

  /// From here on new programs are answered 503 busy. What was admitted is still waited for, and everything else
  /// answers.
  virtual void stop_admitting() = 0;

  /// Every client that still waits, or comes to wait, is answered 503 busy: the request is kept and can be asked for
  /// again with the same X-Request-ID. From here on none is cancelled because nobody waits for it.
  virtual void release_waiting() = 0;

  /// Takes no more connections, lets answers being sent go out for at most `stop_flush_wait`, then closes everything.
  /// After it returns the store and the facts are not asked any more. Requires: not called on an I/O thread.
  virtual void stop() = 0;
};

}  // namespace kcoral::gateway
