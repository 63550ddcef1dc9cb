#include "gateway/status_document.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kcoral::gateway {
namespace {

using namespace std::chrono_literals;

const Uuid kId = *Uuid::parse("01234567-89ab-cdef-0123-456789abcdef");

TEST(StatusDocument, OfAQueuedRequest) {
  store::RequestStatus status;
  status.request_id = kId;
  status.owner = "a token";
  status.client = "alice";
  status.priority = -3;
  status.labels = {{"run", "7"}, {"sweep", "lr"}};
  status.submitted_at = WallTime(1'700'000'000s);
  status.queue_position = 2;
  status.program_sha256 = Sha256::of("");
  EXPECT_EQ(status_document(status),
            R"({"request_id":"01234567-89ab-cdef-0123-456789abcdef","state":"queued","client":"alice",)"
            R"("labels":{"run":"7","sweep":"lr"},"priority":-3,"submitted_at":"2023-11-14T22:13:20.000000Z",)"
            R"("started_at":null,"finished_at":null,"attempt":0,"queue_position":2,"gpu_ids":[],"executor":null,)"
            R"("error":null,"program_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",)"
            R"("results":[],"links":{"self":"/requests/01234567-89ab-cdef-0123-456789abcdef",)"
            R"("result":"/requests/01234567-89ab-cdef-0123-456789abcdef/result",)"
            R"("program":"/requests/01234567-89ab-cdef-0123-456789abcdef/program",)"
            R"("audit":"/requests/01234567-89ab-cdef-0123-456789abcdef/audit",)"
            R"("output":"/requests/01234567-89ab-cdef-0123-456789abcdef/output","artifacts":{}}})");
}

TEST(StatusDocument, OfARequestThatHasEnded) {
  store::RequestStatus status;
  status.request_id = kId;
  status.state = schema::State::kFailed;
  status.attempt = 2;
  status.started_at = WallTime(1s);
  status.finished_at = WallTime(2s);
  status.gpu_ids = {0, 3};
  status.executor = "gpu-0.1";
  status.times = schema::OutcomeTimes{1.23456, 2, 0, 1e6 / 3};
  status.error_kind = "runtime";
  status.error_message = "it \"failed\"\n";
  status.results_summary = R"([{"key":"m","type":"file","size":3},{"key":"a b/\u00e4","type":"null","size":0}])";
  const auto document = nlohmann::ordered_json::parse(status_document(status));
  std::vector<std::string> fields;
  for (const auto& [field, value] : document.items()) fields.push_back(field);
  EXPECT_EQ(fields,
            (std::vector<std::string>{"request_id",    "state",      "client",         "labels",     "priority",
                                      "submitted_at",  "started_at", "finished_at",    "attempt",    "queue_position",
                                      "gpu_ids",       "executor",   "queue_ms",       "elapsed_ms", "lease_wait_ms",
                                      "lease_held_ms", "error",      "program_sha256", "results",    "links"}));
  EXPECT_EQ(document["state"], "failed");
  EXPECT_EQ(document["started_at"], "1970-01-01T00:00:01.000000Z");
  EXPECT_EQ(document["queue_position"], nullptr);
  EXPECT_EQ(document["gpu_ids"], (std::vector<int>{0, 3}));
  EXPECT_EQ(document["executor"], "gpu-0.1");
  EXPECT_EQ(document["queue_ms"].dump(), "1.235");
  EXPECT_EQ(document["elapsed_ms"].dump(), "2.0");
  EXPECT_EQ(document["lease_held_ms"].dump(), "333333.333");
  EXPECT_EQ(document["error"].dump(), R"({"kind":"runtime","message":"it \"failed\"\n"})");
  EXPECT_EQ(document["results"].dump(), nlohmann::ordered_json::parse(status.results_summary).dump());
  const std::string self = "/requests/" + kId.str();
  EXPECT_EQ(document["links"]["artifacts"]["m"], self + "/artifacts/m");
  EXPECT_EQ(document["links"]["artifacts"]["a b/\u00e4"], self + "/artifacts/a%20b%2F%C3%A4");
}

TEST(StatusDocument, IsJsonWhateverTheStoreHas) {
  store::RequestStatus status;
  status.error_kind = "engine";
  status.error_message = "\xff";
  for (const char* summary : {"", "x", "{}", "[1,{},{\"key\":1}]"}) {
    status.results_summary = summary;
    EXPECT_FALSE(nlohmann::json::parse(status_document(status), nullptr, false).is_discarded()) << summary;
  }
}

}  // namespace
}  // namespace kcoral::gateway
