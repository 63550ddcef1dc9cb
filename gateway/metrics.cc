#include "gateway/metrics.h"

#include "gateway/exposition.h"
#include "schema/state.h"

namespace kcoral::gateway {
namespace {

using Type = Exposition::Type;

// Of the clients that are not named; who calls itself that is not named either.
constexpr std::string_view kOtherClients = "other";

double seconds(std::chrono::duration<double> duration) { return duration.count(); }
double as_value(uint64_t count) { return static_cast<double>(count); }

void add_histogram(Exposition& text, std::string_view name, std::string_view help, const HistogramView& view) {
  text.begin(name, Type::kHistogram, help);
  text.histogram(view);
}

void add_server(Exposition& text, const MetricsFacts& facts) {
  text.begin("kcoral_build_info", Type::kGauge, "Always 1; the label says which version runs.");
  text.sample("version", facts.version, 1);
  text.gauge("kcoral_start_time_seconds", "When the server started, in seconds since 1970.",
             seconds(facts.started_at.time_since_epoch()));
  text.begin("kcoral_executors", Type::kGauge,
             "Workers by state. Of those that are idle, some may wait for a GPU that is quarantined.");
  for (const auto& [state, count] : facts.executors) text.sample("state", state, as_value(count));
}

void add_clients(Exposition& text, const store::ClientFigures& clients) {
  text.begin("kcoral_client_requests_finished_total", Type::kCounter,
             "Requests that have ended, by client: the 20 clients with the most since the server started, and the sum "
             "of all others as \"other\". Clients choose their names.");
  static_assert(limits::kClientsNamedMax == 20, "as the help says");
  uint64_t others = clients.ended_of_others;
  for (const store::ClientFigure& each : clients.busiest) {
    if (each.client == kOtherClients) {
      others += each.ended;
    } else {
      text.sample("client", each.client, as_value(each.ended));
    }
  }
  text.sample("client", kOtherClients, as_value(others));
}

void add_requests(Exposition& text, const MetricsFacts& facts) {
  const store::Figures& figures = facts.store;
  text.begin("kcoral_requests_admitted_total", Type::kCounter,
             "Requests that were taken up, by the path they were sent to: /execute or /requests.");
  text.sample("mode", "execute", as_value(figures.admitted_synchronous));
  text.sample("mode", "requests", as_value(figures.admitted_polled));
  text.begin("kcoral_requests_refused_total", Type::kCounter,
             "Programs that were not taken up for want of room: the queue was full, or had enough of their client.");
  text.sample("reason", "queue_full", as_value(figures.refused_queue_full));
  text.sample("reason", "client_limit", as_value(figures.refused_client_limit));
  text.begin("kcoral_requests_finished_total", Type::kCounter, "Requests that have ended, by how.");
  for (size_t i = 0; i < figures.ended.size(); ++i) {
    const auto state = static_cast<schema::State>(i);
    if (schema::is_terminal(state)) text.sample("state", schema::wire_name(state), as_value(figures.ended[i]));
  }
  add_clients(text, figures.clients);
  text.begin("kcoral_requests_requeued_total", Type::kCounter,
             "Requests that were queued again: their run was lost and an attempt was left, or they could not be "
             "started.");
  text.sample("reason", "lost", as_value(figures.requeued_lost));
  text.sample("reason", "not_started", as_value(figures.requeued_unstarted));
  text.begin("kcoral_requests", Type::kGauge, "Requests that have not ended.");
  text.sample("state", "queued", as_value(facts.requests.queued));
  text.sample("state", "in_progress", as_value(facts.requests.in_progress));
  text.gauge("kcoral_queue_oldest_age_seconds",
             "How long ago the oldest of the queued requests was submitted; 0 if none is queued.",
             seconds(figures.oldest_queued_age.value_or(std::chrono::nanoseconds(0))));
  add_histogram(text, "kcoral_request_queue_seconds",
                "How long requests were queued before a worker took them, at each attempt.", figures.queued);
  add_histogram(text, "kcoral_request_run_seconds", "How long programs ran, waiting for a GPU included.", figures.ran);
}

void add_store(Exposition& text, const store::Figures& figures) {
  add_histogram(text, "kcoral_commit_seconds",
                "How long each transaction of the database took that was committed, its sync to the disk included.",
                figures.committed);
  text.counter("kcoral_commit_operations_total", "Changes in these transactions, which carry several where many wait.",
               as_value(figures.operations_committed));
  text.counter("kcoral_blob_cache_hits_total", "Blobs that a program needed and that were in memory.",
               as_value(figures.blob_cache_hits));
  text.counter("kcoral_blob_cache_misses_total", "Blobs that a program needed and that were read from the disk.",
               as_value(figures.blob_cache_misses));
  text.gauge("kcoral_blob_cache_bytes", "Blobs in memory.", as_value(figures.blob_cache_bytes));
  text.counter("kcoral_blobs_received_total", "Blobs that clients sent along and that were kept.",
               as_value(figures.blobs_received));
  text.counter("kcoral_blob_received_bytes_total", "The bytes of these blobs.", as_value(figures.blob_bytes_received));
  text.counter("kcoral_blobs_missing_total", "Blobs that programs named and that were neither sent along nor held.",
               as_value(figures.blobs_missing));
  text.gauge("kcoral_answers_kept_bytes", "Answers of requests that have ended, as they are kept.",
             as_value(figures.answer_bytes));
  text.counter("kcoral_answers_pruned_total", "Answers that were removed since all together took too much room.",
               as_value(figures.answers_pruned));
  text.counter("kcoral_requests_forgotten_total", "Requests that were removed, with their answers, for their age.",
               as_value(figures.requests_forgotten));
}

template <typename Value>
void add_of_each(Exposition& text, std::string_view name, Type type, std::string_view help,
                 const std::vector<GpuFacts>& gpus, Value value) {
  text.begin(name, type, help);
  for (const GpuFacts& gpu : gpus) text.sample("gpu", std::to_string(gpu.id), value(gpu));
}

void add_leases(Exposition& text, const LeaseFacts& leases) {
  add_histogram(text, "kcoral_lease_wait_seconds",
                "How long programs waited for each GPU lease that they were granted.", leases.waited);
  add_histogram(text, "kcoral_lease_held_seconds", "How long programs held each GPU lease that has ended.",
                leases.held);
}

void add_gpus(Exposition& text, const std::vector<GpuFacts>& gpus) {
  add_of_each(text, "kcoral_gpu_lease_holders", Type::kGauge, "1 while somebody holds the lease of this GPU, else 0.",
              gpus, [](const GpuFacts& gpu) { return gpu.holder ? 1 : 0; });
  add_of_each(text, "kcoral_gpu_lease_waiters", Type::kGauge,
              "Who waits for a lease that this GPU could serve. Who can have any of several waits for each.", gpus,
              [](const GpuFacts& gpu) { return as_value(gpu.waiters); });
  add_of_each(text, "kcoral_gpu_lease_handovers_total", Type::kCounter,
              "Leases of this GPU that passed on to somebody who waited.", gpus,
              [](const GpuFacts& gpu) { return as_value(gpu.handovers); });
  add_of_each(text, "kcoral_gpu_lease_idle_between_seconds_total", Type::kCounter,
              "How long nobody held this GPU in all these handovers.", gpus,
              [](const GpuFacts& gpu) { return gpu.idle_between_ms / 1000; });
  add_of_each(text, "kcoral_gpu_quarantined", Type::kGauge, "1 while this GPU is out of use; GET /gpus says why.", gpus,
              [](const GpuFacts& gpu) { return gpu.quarantine ? 1 : 0; });
}

}  // namespace

std::string render_metrics(const MetricsFacts& facts) {
  Exposition text;
  add_server(text, facts);
  add_requests(text, facts);
  add_store(text, facts.store);
  if (facts.leases) add_leases(text, *facts.leases);
  if (!facts.gpus.empty()) add_gpus(text, facts.gpus);
  return std::move(text).take();
}

}  // namespace kcoral::gateway
