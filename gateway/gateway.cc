#include "gateway/gateway.h"

#include <algorithm>

#include "gateway/body_budget.h"
#include "gateway/connection.h"
#include "gateway/descriptors.h"
#include "gateway/execute.h"
#include "gateway/gpus.h"
#include "gateway/health.h"
#include "gateway/origin.h"
#include "gateway/routes.h"
#include "gateway/transport.h"

namespace kcoral::gateway {
namespace {

/// A GET's exchange: it does not want a body, keeps nothing of it, and answers when whatever was sent is over.
class DocumentExchange final : public Exchange {
 public:
  DocumentExchange(std::function<schema::Answer()> make, const Uuid& request_id, ResponseSink& sink)
      : make_(std::move(make)), request_id_(request_id), sink_(sink) {}

  void on_body(std::string_view) override {}
  void on_body_end() override { sink_.respond({request_id_, std::make_shared<const schema::Answer>(make_()), {}}); }

 private:
  const std::function<schema::Answer()> make_;
  const Uuid request_id_;
  ResponseSink& sink_;
};

std::shared_ptr<BodyBudget> make_budget(const GatewayConfig& config) {
  return std::make_shared<BodyBudget>(std::max(config.bodies_bytes_max, config.request_bytes_max),
                                      within_descriptors(config.staged_blobs_max, 8));
}

class HttpGateway final : public Gateway, public Dispatcher {
 public:
  HttpGateway(GatewayConfig config, const ListenAddress& address, store::Store& store, Clock& clock, Facts facts)
      : config_(std::move(config)),
        limits_{.head = config_.head_timeout,
                .stall = config_.stall_timeout,
                .idle = config_.idle_timeout,
                .body_bytes_max = config_.request_bytes_max},
        clock_(clock),
        facts_(std::move(facts)),
        address_(address),
        origin_(config_.host, address.loopback, config_.allowed_hosts),
        execute_({config_.worker_wait, config_.bounds}, make_budget(config_), store) {
    routes_.add("POST", "/execute", Endpoint::kExecute);
    routes_.add("GET", "/health", Endpoint::kHealth);
    routes_.add("GET", "/gpus", Endpoint::kGpus);
  }
  ~HttpGateway() override { stop(); }

  Status listen();

  uint16_t port() const override { return transport_->port(); }
  void stop_admitting() override { execute_.stop_admitting(); }
  void release_waiting() override { execute_.release_waiting(); }
  void stop() override {
    if (transport_ != nullptr) transport_->stop(config_.stop_flush_wait);
  }

  std::shared_ptr<Exchange> open(const RequestHead& head, const Uuid& request_id, const PeerAddress& peer, IoThread& io,
                                 ResponseSink& sink) override;

 private:
  const GatewayConfig config_;
  const ConnectionLimits limits_;
  Clock& clock_;
  const Facts facts_;
  const ListenAddress address_;
  const OriginPolicy origin_;
  Routes routes_;
  ExecuteService execute_;
  std::unique_ptr<Transport> transport_;  // last: its threads use everything above
};

Status HttpGateway::listen() {
  const TransportConfig transport{address_, config_.io_threads, config_.connections_max};
  auto listening = Transport::listen(
      transport, clock_, [this](IoThread& io, int fd, const std::string& peer_host, uint16_t peer_port) {
        return std::make_shared<Connection>(io, *this, limits_, fd, PeerAddress{peer_host, peer_port});
      });
  if (!listening) return fail(listening.error());
  transport_ = std::move(*listening);
  return {};
}

std::shared_ptr<Exchange> HttpGateway::open(const RequestHead& head, const Uuid& request_id, const PeerAddress& peer,
                                            IoThread& io, ResponseSink& sink) {
  if (auto own = origin_.check(head); !own) {
    sink.respond(error_response(request_id, own.error()));
    return nullptr;
  }
  const auto route = routes_.match(head.method, head.path);
  if (const auto* match = std::get_if<Routes::Match>(&route)) {
    if (head.body.content_length > config_.request_bytes_max) {
      sink.respond(error_response(request_id, request_too_large(config_.request_bytes_max)));
      return nullptr;
    }
    switch (match->endpoint) {
      case Endpoint::kExecute:
        return execute_.open(head, request_id, peer, io, sink);
      case Endpoint::kHealth:
        return std::make_shared<DocumentExchange>([this] { return make_health_answer(facts_.health()); }, request_id,
                                                  sink);
      case Endpoint::kGpus:
        return std::make_shared<DocumentExchange>([this] { return make_gpus_answer(facts_.gpus()); }, request_id, sink);
    }
  }
  if (const auto* not_allowed = std::get_if<Routes::MethodNotAllowed>(&route)) {
    auto response = error_response(
        request_id, {ErrorKind::kMethodNotAllowed, fmt::format("this path answers {} only", not_allowed->allow)});
    response.allow = not_allowed->allow;
    sink.respond(std::move(response));
    return nullptr;
  }
  sink.respond(error_response(request_id, {ErrorKind::kNotFound, "there is nothing at this path"}));
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<Gateway>> Gateway::start(GatewayConfig config, store::Store& store, Clock& clock, Facts facts) {
  const auto address = ListenAddress::resolve(config.host, config.port);
  if (!address) return fail(address.error());
  auto gateway = std::make_unique<HttpGateway>(std::move(config), *address, store, clock, std::move(facts));
  if (auto listening = gateway->listen(); !listening) return fail(listening.error());
  return gateway;
}

}  // namespace kcoral::gateway
