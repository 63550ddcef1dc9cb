#include "executor/timing/activities.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <vector>

namespace kcoral::timing {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMarkBytes = 1036;

union Record {
  abi::Activity activity;
  abi::KernelActivity kernel;
  abi::MemsetActivity memset;
};

Record kernel(uint32_t id, uint64_t start, uint64_t end, const char* name = "k") {
  Record record{};
  record.kernel.kind = abi::kConcurrentKernel;
  record.kernel.correlation_id = id;
  record.kernel.start = start;
  record.kernel.end = end;
  record.kernel.name = name;
  return record;
}

Record mark(const Series& series, uint32_t index, uint32_t id, uint64_t start, uint64_t end) {
  Record record{};
  record.memset.kind = abi::kMemset;
  record.memset.value = series.mark_value(index);
  record.memset.bytes = kMarkBytes;
  record.memset.correlation_id = id;
  record.memset.start = start;
  record.memset.end = end;
  return record;
}

class SeriesTest : public testing::Test {
 protected:
  void TearDown() override { series.release(); }

  void add(const Record& record) { series.add(&record.activity); }
  bool attribute(uint32_t calls, uint32_t skip = 0) {
    spans_ns.assign(calls, 0);
    return series.attribute(calls, skip, result, spans_ns.data(), outcome);
  }

  Series series;
  Outcome outcome;
  kcoral_timing_series result{};
  std::vector<uint64_t> spans_ns;
};

/// Random calls on several streams, reported in a random order, against the plain definition of a sample.
TEST_F(SeriesTest, SpansAreThoseOfTheDefinition) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const uint32_t calls = 1 + random() % 20, skip = random() % calls;
    ASSERT_TRUE(series.start(calls, kMarkBytes, false, outcome));
    std::vector<Record> records;
    std::vector<uint64_t> expected;
    uint32_t id = 1 + random() % 1000, empty = 0;
    uint64_t time = 1000;
    for (uint32_t i = 0; i < calls; ++i) {
      records.push_back(mark(series, i, id += 1 + random() % 5, time, time + 10));
      uint64_t first = UINT64_MAX, last = 0;
      for (uint32_t count = random() % 6; count > 0; --count) {
        if (random() % 2 == 0) id += 1 + random() % 3;  // or the same: nodes of a graph
        id += records.back().activity.kind == abi::kMemset;
        const uint64_t start = time + random() % 1000, end = start + random() % 1000;
        records.push_back(kernel(id, start, end));
        first = std::min(first, start);
        last = std::max(last, end);
      }
      time += random() % 3000;
      if (i < skip) continue;
      expected.push_back(last == 0 ? 0 : std::max<uint64_t>(last - first, 1));
      empty += last == 0;
    }
    records.push_back(mark(series, calls, id + 1, time, time + 10));
    records.push_back(kernel(id + 2, 1, 2, "after the series"));
    std::shuffle(records.begin(), records.end(), random);
    for (const Record& record : records) add(record);
    ASSERT_TRUE(attribute(calls, skip)) << outcome.message();
    spans_ns.resize(calls - skip);
    EXPECT_EQ(spans_ns, expected);
    EXPECT_EQ(result.empty, empty);
  }
}

TEST_F(SeriesTest, TheTimesOfOverlapAreExactUpToATolerance) {
  const struct {
    uint64_t start, end;
    uint32_t overlapping;
  } cases[] = {
      {2000, 3000, 0}, {1500, 3000, 0}, {1499, 3000, 1}, {2500, 8500, 0}, {2500, 8501, 1},
  };
  for (const auto& [start, end, overlapping] : cases) {
    ASSERT_TRUE(series.start(1, kMarkBytes, true, outcome));
    add(mark(series, 0, 1, 1000, 2000));
    add(kernel(2, start, end));
    add(mark(series, 1, 3, 8000, 9000));
    ASSERT_TRUE(attribute(1)) << outcome.message();
    EXPECT_EQ(result.overlapping, overlapping) << start << " to " << end;
  }
}

TEST_F(SeriesTest, MarksOutOfOrderAreAContradiction) {
  ASSERT_TRUE(series.start(1, kMarkBytes, true, outcome));
  add(mark(series, 0, 9, 1000, 2000));
  add(mark(series, 1, 3, 3000, 4000));
  EXPECT_FALSE(attribute(1));
  EXPECT_EQ(outcome.status(), KCORAL_TIMING_RECORDS_LOST);
  EXPECT_THAT(outcome.message(), HasSubstr("mark 1 was reported out of order"));
}

TEST_F(SeriesTest, MarksOfAnEarlierSeriesAreNoneOfThis) {
  ASSERT_TRUE(series.start(3, kMarkBytes, true, outcome));
  const Record stale = mark(series, 0, 1, 10, 20), stale_last = mark(series, 3, 7, 30, 40);
  series.release();
  ASSERT_TRUE(series.start(1, kMarkBytes, true, outcome));
  add(stale);
  add(stale_last);
  add(mark(series, 0, 11, 1000, 2000));
  add(kernel(12, 2000, 2100));
  add(mark(series, 1, 13, 3000, 4000));
  ASSERT_TRUE(attribute(1)) << outcome.message();
  EXPECT_EQ(spans_ns[0], 100U);
}

TEST_F(SeriesTest, ActivitiesAreBounded) {
  ASSERT_TRUE(series.start(1, kMarkBytes, false, outcome));
  add(mark(series, 0, 1, 1000, 2000));
  const Record record = kernel(2, 2000, 2100);
  for (size_t i = 0; i <= kActivitiesMax; ++i) add(record);
  add(mark(series, 1, 3, 3000, 4000));
  EXPECT_FALSE(attribute(1));
  EXPECT_EQ(outcome.status(), KCORAL_TIMING_MISUSE);
  EXPECT_THAT(outcome.message(), HasSubstr("more than 4194304 GPU activities"));
}

}  // namespace
}  // namespace kcoral::timing
