#include "gateway/gpus.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kcoral::gateway {
namespace {

using nlohmann::json;

GpuFacts a_gpu() {
  GpuFacts gpu;
  gpu.id = 3;
  gpu.name = "NVIDIA H200";
  gpu.uuid = "GPU-1";
  gpu.arch = "sm_90a";
  gpu.memory_bytes = uint64_t{1} << 37;
  gpu.waiters = 2;
  gpu.handovers = 5;
  gpu.idle_between_ms = 0.25;
  return gpu;
}

json shown(const GpuFacts& gpu) {
  const schema::Answer answer = make_gpus_answer({gpu});
  EXPECT_EQ(answer.http_status, 200);
  EXPECT_TRUE(answer.parts.empty());
  return json::parse(answer.document).at("gpus").at(0);
}

TEST(Gpus, NoneIsAnEmptyList) { EXPECT_EQ(make_gpus_answer({}).document, R"({"gpus":[]})"); }

TEST(Gpus, EveryFieldIsThereAndWhatIsNotKnownIsNull) {
  EXPECT_EQ(shown(a_gpu()), json::parse(R"({
    "id": 3, "name": "NVIDIA H200", "uuid": "GPU-1", "arch": "sm_90a", "memory_bytes": 137438953472,
    "memory_used_bytes": null, "utilisation_percent": null, "temperature_celsius": null, "sm_clock_mhz": null,
    "health": "ok", "holder": null, "waiters": 2, "handovers": 5, "idle_between_ms": 0.25})"));
  GpuFacts gpu = a_gpu();
  gpu.memory_used_bytes = 7;
  gpu.utilisation_percent = 0;
  gpu.temperature_celsius = 41;
  gpu.sm_clock_mhz = 1980;
  const json known = shown(gpu);
  EXPECT_EQ(known["memory_used_bytes"], 7);
  EXPECT_EQ(known["utilisation_percent"], 0);
  EXPECT_EQ(known["temperature_celsius"], 41);
  EXPECT_EQ(known["sm_clock_mhz"], 1980);
}

TEST(Gpus, HoldersAreNamedByTheirRequestIfThereIsOne) {
  GpuFacts gpu = a_gpu();
  gpu.holder = {"0b8cf8d4-6a3e-4f0e-9a55-0d5c3f6d2a11", "executor-1", WallTime(std::chrono::microseconds(1))};
  EXPECT_EQ(shown(gpu)["holder"], json::parse(R"({"request_id": "0b8cf8d4-6a3e-4f0e-9a55-0d5c3f6d2a11",
    "executor": "executor-1", "since": "1970-01-01T00:00:00.000001Z"})"));
  gpu.holder->request_id = std::nullopt;
  EXPECT_EQ(shown(gpu)["holder"]["request_id"], nullptr);
}

TEST(Gpus, OneThatIsOutOfUseSaysWhy) {
  GpuFacts gpu = a_gpu();
  gpu.quarantine = {WallTime(std::chrono::microseconds(1)), "process 77 still uses it"};
  const json document = shown(gpu);
  EXPECT_EQ(document["health"], "quarantined");
  EXPECT_EQ(document["quarantined"],
            json::parse(R"({"since": "1970-01-01T00:00:00.000001Z", "reason": "process 77 still uses it"})"));
}

TEST(Gpus, AreShownInTheirOrder) {
  GpuFacts first = a_gpu(), second = a_gpu();
  second.id = 1;
  const json gpus = json::parse(make_gpus_answer({first, second}).document)["gpus"];
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0]["id"], 3);
  EXPECT_EQ(gpus[1]["id"], 1);
}

}  // namespace
}  // namespace kcoral::gateway
