// One client's connection: head → body → wait for the answer → send it → next request.
//
// - Requests on one connection are served in order. While one waits for its answer or is being answered nothing is
//   read, so a client that sends on is held back by TCP, not buffered.
// - A client that closed its sending half is answered. One whose connection is gone is forgotten at once. Which of the
//   two a client is that closed at least its sending half while it waits only shows when something is written to it: it
//   is sent "100 Continue" now and then, which any HTTP/1.1 client ignores (RFC 9110, 15.2.1).
// - After an error that leaves in doubt where the next request begins, and after any answer given before the whole
//   body was read, the connection is closed in such a way that the client can read the answer first: the sending half
//   is closed, and what still arrives is read and dropped for a bounded time.
// - Time limits (ConnectionLimits) count from the last progress; none ends a client that awaits its answer.
//
// Lives on one I/O thread, owned by the transport; all calls on that thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/chunked.h"
#include "gateway/head.h"
#include "gateway/http_types.h"
#include "gateway/input.h"
#include "gateway/io_thread.h"
#include "gateway/output.h"
#include "schema/limits.h"

namespace kcoral::gateway {

struct ConnectionLimits {
  std::chrono::milliseconds head = limits::kHeadTimeout;
  std::chrono::milliseconds stall = limits::kBodyStallTimeout;
  std::chrono::milliseconds idle = limits::kIdleTimeout;
  std::chrono::milliseconds probe = limits::kHalfClosedProbe;
  std::chrono::milliseconds linger_silence = limits::kLingerSilence;
  std::chrono::milliseconds linger_total = limits::kLingerTotal;
  uint64_t body_bytes_max = limits::kRequestBytesMax;  // of a chunked body; the dispatcher looks at a Content-Length
};

struct PeerAddress {
  std::string host;
  uint16_t port = 0;
};

/// What an exchange is made from. Only `io` and `sink` outlive the making, and the exchange.
struct Call {
  const RequestHead& head;
  const Uuid& id;  // echoed on the answer; a submission's is its request's
  const PeerAddress& peer;
  IoThread& io;
  ResponseSink& sink;
};

/// Turns a call's head into somebody who takes its body and answers it.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  /// Either answers through `call.sink` at once (and then returns null or an exchange that is not used), or returns the
  /// exchange that will.
  virtual std::shared_ptr<Exchange> open(const Call& call) = 0;
};

class Connection final : public SocketOwner, public ResponseSink, public std::enable_shared_from_this<Connection> {
 public:
  /// `fd` is owned by the transport, which closes it after `io.close_later`.
  Connection(IoThread& io, Dispatcher& dispatcher, const ConnectionLimits& limits, int fd, PeerAddress peer);
  ~Connection() override;

  void on_ready(bool readable, bool writable, bool hangup) override;
  void stop() override;
  void respond(Response response) override;

 private:
  enum class Phase { kHead, kBody, kWaiting, kSending, kLingering, kClosed };

  void pump();
  bool step();
  bool step_input();
  bool step_sending();
  bool step_lingering();

  bool fill();
  bool end_of_input();
  bool take_head();
  bool take_body();
  bool take_sized_body();
  bool take_chunked_body();
  void begin_request(ParsedHead parsed);
  void end_body();
  bool step_waiting();
  bool is_half_closed() const;
  void probe();
  void refuse(Error error);

  void begin_answer();
  std::string answer_head(const Response& response, bool close) const;
  void end_answer();
  bool flush_output();
  void begin_lingering();
  void close();

  void continue_later();
  std::optional<SteadyTime> deadline() const;
  void arm_timer();
  void on_timer();
  void on_deadline();

  IoThread& io_;
  Dispatcher& dispatcher_;
  const ConnectionLimits& limits_;
  const int fd_;
  const PeerAddress peer_;

  Phase phase_ = Phase::kHead;
  bool pumping_ = false;
  bool stopping_ = false;

  // The socket's state as far as it is known.
  bool readable_ = false;
  bool writable_ = true;
  bool input_closed_ = false;
  Input input_;
  OutputQueue output_;
  size_t read_budget_ = 0;   // of this round
  size_t write_budget_ = 0;  // of this round

  // The request being served.
  HeadScanner scanner_;
  RequestHead head_;
  std::optional<Uuid> request_id_;
  uint64_t body_remaining_ = 0;
  ChunkedDecoder chunked_;
  bool body_complete_ = false;
  std::shared_ptr<Exchange> exchange_;
  std::optional<Response> response_;
  bool close_after_answer_ = false;
  std::optional<SteadyTime> probe_at_;  // while the client waits and has closed at least its sending half

  SteadyTime progress_at_;     // of either direction
  SteadyTime phase_began_at_;  // of a head's first byte, or of lingering
  std::optional<TimerQueue::Id> timer_;
  SteadyTime timer_at_{};
};

}  // namespace kcoral::gateway
