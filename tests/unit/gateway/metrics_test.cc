#include "gateway/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace kcoral::gateway {
namespace {

using testing::HasSubstr;
using testing::Not;

HistogramView histogram() { return {{1, 60}, {1, 2, 0}, 50}; }

MetricsFacts some_facts() {
  MetricsFacts facts;
  facts.version = "0.1.0";
  facts.started_at = WallTime(std::chrono::milliseconds(1500));
  facts.requests = {.queued = 4, .in_progress = 2};
  facts.executors = {{"idle", 1}, {"broken", 0}};
  facts.store.queued = facts.store.ran = facts.store.committed = histogram();
  return facts;
}

TEST(Metrics, EveryFamilyIsNamedAsPrometheusWouldHaveIt) {
  MetricsFacts facts = some_facts();
  facts.leases = {histogram(), histogram()};
  facts.gpus = {GpuFacts{}};
  std::istringstream lines(render_metrics(facts));
  std::set<std::string> names;
  for (std::string hash, keyword, name, rest; lines >> hash; std::getline(lines, rest)) {
    if (hash != "#") continue;
    lines >> keyword >> name;
    if (keyword != "TYPE") continue;
    EXPECT_TRUE(names.insert(name).second) << name << " comes twice";
    EXPECT_TRUE(name.starts_with("kcoral_")) << name;
    std::string type;
    lines >> type;
    EXPECT_EQ(type == "counter", name.ends_with("_total")) << name;
    EXPECT_TRUE(type != "histogram" || name.ends_with("_seconds")) << name;
  }
  EXPECT_GT(names.size(), 25u);
}

TEST(Metrics, RequestsAreShownByStateAndTheQueueByItsAge) {
  MetricsFacts facts = some_facts();
  EXPECT_THAT(render_metrics(facts), HasSubstr("\nkcoral_queue_oldest_age_seconds 0\n"));
  facts.store.oldest_queued_age = std::chrono::milliseconds(2500);
  facts.store.ended[static_cast<size_t>(schema::State::kTimedOut)] = 7;
  const std::string text = render_metrics(facts);
  EXPECT_THAT(text, HasSubstr("\nkcoral_queue_oldest_age_seconds 2.5\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_requests{state=\"queued\"} 4\nkcoral_requests{state=\"in_progress\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_requests_finished_total{state=\"timed_out\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_requests_finished_total{state=\"completed\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("finished_total{state=\"queued\"}")));
  EXPECT_THAT(text, HasSubstr("\nkcoral_executors{state=\"idle\"} 1\nkcoral_executors{state=\"broken\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_start_time_seconds 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_request_run_seconds_bucket{le=\"60\"} 3\n"));
}

TEST(Metrics, WhoCallsItselfOtherIsAmongTheOthers) {
  MetricsFacts facts = some_facts();
  facts.store.clients = {{{"other", 10}, {"a\n\"b\"", 5}}, 3};
  const std::string text = render_metrics(facts);
  EXPECT_THAT(text, HasSubstr("\nkcoral_client_requests_finished_total{client=\"a\\n\\\"b\\\"\"} 5\n"
                              "kcoral_client_requests_finished_total{client=\"other\"} 13\n"));
}

TEST(Metrics, GpusAreShownWhereThereAreSome) {
  MetricsFacts facts = some_facts();
  EXPECT_THAT(render_metrics(facts), Not(testing::AnyOf(HasSubstr("_gpu_"), HasSubstr("_lease_"))));
  facts.leases = {histogram(), histogram()};
  GpuFacts held;
  held.holder.emplace();
  held.waiters = 3;
  held.handovers = 9;
  held.idle_between_ms = 250;
  GpuFacts bad;
  bad.id = 1;
  bad.quarantine.emplace();
  facts.gpus = {held, bad};
  const std::string text = render_metrics(facts);
  EXPECT_THAT(text, HasSubstr("\nkcoral_gpu_lease_holders{gpu=\"0\"} 1\nkcoral_gpu_lease_holders{gpu=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_gpu_quarantined{gpu=\"0\"} 0\nkcoral_gpu_quarantined{gpu=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_gpu_lease_waiters{gpu=\"0\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_gpu_lease_handovers_total{gpu=\"0\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_gpu_lease_idle_between_seconds_total{gpu=\"0\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("\nkcoral_lease_wait_seconds_count 3\n"));
}

}  // namespace
}  // namespace kcoral::gateway
