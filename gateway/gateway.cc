#include "gateway/gateway.h"

#include <algorithm>

#include "gateway/abandonment.h"
#include "gateway/body_budget.h"
#include "gateway/connection.h"
#include "gateway/descriptors.h"
#include "gateway/exposition.h"
#include "gateway/gpus.h"
#include "gateway/health.h"
#include "gateway/metrics.h"
#include "gateway/origin.h"
#include "gateway/requests.h"
#include "gateway/routes.h"
#include "gateway/submission_exchange.h"
#include "gateway/transport.h"

namespace kcoral::gateway {
namespace {

/// A GET's exchange: it does not want a body, keeps nothing of it, and answers when whatever was sent is over.
class DocumentExchange final : public Exchange {
 public:
  using Make = std::function<Response(const Uuid& request_id)>;
  DocumentExchange(Make make, const Call& call) : make_(std::move(make)), request_id_(call.id), sink_(call.sink) {}

  void on_body(std::string_view) override {}
  void on_body_end() override { sink_.respond(make_(request_id_)); }

 private:
  const Make make_;
  const Uuid request_id_;
  ResponseSink& sink_;
};

Response document_response(const Uuid& request_id, schema::Answer answer) {
  return answer_response(request_id, std::make_shared<const schema::Answer>(std::move(answer)));
}

std::shared_ptr<BodyBudget> make_budget(const GatewayConfig& config) {
  return std::make_shared<BodyBudget>(std::max(config.bodies_bytes_max, config.request_bytes_max),
                                      within_descriptors(config.staged_blobs_max, 8));
}

void add_routes(Routes& routes) {
  routes.add("POST", "/execute", Endpoint::kExecute);
  routes.add("POST", "/requests", Endpoint::kEnqueue);
  routes.add("GET", "/requests", Endpoint::kHistory);
  routes.add("GET", "/requests/:id", Endpoint::kStatus);
  routes.add("DELETE", "/requests/:id", Endpoint::kCancel);
  routes.add("GET", "/requests/:id/result", Endpoint::kResult);
  routes.add("GET", "/requests/:id/program", Endpoint::kProgram);
  routes.add("GET", "/requests/:id/audit", Endpoint::kAudit);
  routes.add("GET", "/requests/:id/output", Endpoint::kOutput);
  routes.add("GET", "/requests/:id/artifacts/:key", Endpoint::kArtifact);
  routes.add("GET", "/health", Endpoint::kHealth);
  routes.add("GET", "/gpus", Endpoint::kGpus);
  routes.add("GET", "/metrics", Endpoint::kMetrics);
}

class HttpGateway final : public Gateway, public Dispatcher {
 public:
  HttpGateway(GatewayConfig config, const ListenAddress& address, store::Store& store, Clock& clock, Facts facts)
      : config_(std::move(config)),
        limits_{.head = config_.head_timeout,
                .stall = config_.stall_timeout,
                .idle = config_.idle_timeout,
                .probe = config_.half_closed_probe,
                .body_bytes_max = config_.request_bytes_max},
        clock_(clock),
        facts_(std::move(facts)),
        address_(address),
        origin_(config_.host, address.loopback, config_.allowed_hosts),
        abandonment_(config_.abandoned_after, store),
        submissions_({config_.worker_wait, config_.bounds}, make_budget(config_), store, waiting_, abandonment_),
        requests_(store, waiting_, abandonment_) {
    add_routes(routes_);
  }
  ~HttpGateway() override { stop(); }

  Status listen();

  uint16_t port() const override { return transport_->port(); }
  void stop_admitting() override { submissions_.stop_admitting(); }
  void release_waiting() override {
    abandonment_.stop();
    waiting_.release();
  }
  void stop() override {
    abandonment_.stop();
    if (transport_ != nullptr) transport_->stop(config_.stop_flush_wait);
  }

  std::shared_ptr<Exchange> open(const Call& call) override;

 private:
  Result<std::shared_ptr<Exchange>> open_match(const Routes::Match& match, const Call& call);

  const GatewayConfig config_;
  const ConnectionLimits limits_;
  Clock& clock_;
  const Facts facts_;
  const ListenAddress address_;
  const OriginPolicy origin_;
  Routes routes_;
  WaitingClients waiting_;
  Abandonment abandonment_;
  SubmissionService submissions_;
  RequestService requests_;
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

std::shared_ptr<Exchange> HttpGateway::open(const Call& call) {
  const auto refuse = [&call](const Error& error, std::vector<Header> headers = {}) {
    Response response = error_response(call.id, error);
    std::move(headers.begin(), headers.end(), std::back_inserter(response.headers));
    call.sink.respond(std::move(response));
    return nullptr;
  };
  if (auto own = origin_.check(call.head); !own) return refuse(own.error());
  const auto route = routes_.match(call.head.method, call.head.path);
  if (const auto* match = std::get_if<Routes::Match>(&route)) {
    auto exchange = open_match(*match, call);
    return exchange ? *exchange : refuse(exchange.error());
  }
  if (const auto* not_allowed = std::get_if<Routes::MethodNotAllowed>(&route)) {
    return refuse({ErrorKind::kMethodNotAllowed, fmt::format("this path answers {} only", not_allowed->allow)},
                  {{"Allow", not_allowed->allow}});
  }
  return refuse({ErrorKind::kNotFound, "there is nothing at this path"});
}

Result<std::shared_ptr<Exchange>> HttpGateway::open_match(const Routes::Match& match, const Call& call) {
  if (call.head.body.content_length > config_.request_bytes_max) {
    return fail(request_too_large(config_.request_bytes_max));
  }
  switch (match.endpoint) {
    case Endpoint::kExecute:
      return submissions_.open_execute(call);
    case Endpoint::kEnqueue:
      return submissions_.open_enqueue(call);
    case Endpoint::kHealth:
      return std::make_shared<DocumentExchange>(
          [this](const Uuid& id) { return document_response(id, make_health_answer(facts_.health())); }, call);
    case Endpoint::kGpus:
      return std::make_shared<DocumentExchange>(
          [this](const Uuid& id) { return document_response(id, make_gpus_answer(facts_.gpus())); }, call);
    case Endpoint::kMetrics:
      return std::make_shared<DocumentExchange>(
          [this](const Uuid& id) {
            return text_response(id, render_metrics(facts_.metrics()), std::string(Exposition::kContentType));
          },
          call);
    default:
      return requests_.open(match, call);
  }
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
