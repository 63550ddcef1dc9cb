#include <dlfcn.h>

#include <functional>
#include <random>
#include <thread>

#include "tests/unit/timing/fake_gpu_fixture.h"

namespace kcoral::timing {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kFlushBytes = 256ULL << 20;
constexpr uint64_t kL2Bytes = 50ULL << 20;

void kernel(uint64_t duration_ns, const char* name = "kernel") { fake_gpu_launch(name, 1, duration_ns, 0); }

// --- What a sample is (contract section 10) ---

TEST_F(FakeGpuTest, ASampleIsFromTheFirstToTheLastActivity) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(3, [](uint32_t i) {
    kernel(5000);
    kernel(1000 + i * 10);
  });
  EXPECT_EQ(measured.status, KCORAL_TIMING_OK) << measured.error;
  EXPECT_THAT(measured.spans_ns, ElementsAre(6000, 6010, 6020));
  EXPECT_EQ(measured.series.calls, 3U);
  EXPECT_EQ(measured.series.activities, 6U);
  EXPECT_EQ(measured.series.stable, 1U);
  EXPECT_EQ(measured.series.empty, 0U);
  EXPECT_EQ(measured.series.overlapping, 0U);
}

TEST_F(FakeGpuTest, GapsInsideCountAndHostTimeOutsideDoesNot) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  // Synchronised, so that the GPU waits for the host: 1 us for each call of it.
  const auto call = [](uint32_t) {
    for (int i = 0; i < 20; ++i) fake_gpu_call("cuEventQuery", 0);
    kernel(100);
    for (int i = 0; i < 7; ++i) fake_gpu_call("cuEventQuery", 0);
    kernel(100);
    for (int i = 0; i < 20; ++i) fake_gpu_call("cuEventQuery", 0);
  };
  EXPECT_THAT(measure(4, call, 0, true).spans_ns, Each(8000U + 100U));
}

TEST_F(FakeGpuTest, CopiesMemsetsAndNodesOfGraphsCount) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_THAT(measure(2, [](uint32_t) { fake_gpu_copy(1 << 20, 700, 0); }).spans_ns, Each(700U));
  EXPECT_THAT(measure(2, [](uint32_t) { fake_gpu_copy_peer(1 << 20, 900, 0); }).spans_ns, Each(900U));
  EXPECT_THAT(measure(2, [](uint32_t) { fake_gpu_memset(0, 1 << 20, 300, 0); }).spans_ns, Each(300U));
  const Measured graph = measure(2, [](uint32_t) { fake_gpu_launch_graph("node", 5, 200, 0); });
  EXPECT_THAT(graph.spans_ns, Each(1000U));
  EXPECT_EQ(graph.series.activities, 10U);
}

TEST_F(FakeGpuTest, TheFlushIsOutside) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(facts.flush_bytes, kFlushBytes);
  const Measured measured = measure(2, [](uint32_t) { kernel(1000); });
  EXPECT_THAT(measured.spans_ns, Each(1000U));
  EXPECT_GT(measured.series.elapsed_ns, 2 * (1000 + kFlushBytes / 2048));
}

TEST_F(FakeGpuTest, MemsetsOfTheSameSizeAreTheProgramsUnlessTheirValueIsOurs) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(5, [](uint32_t i) { fake_gpu_memset(i, kFlushBytes, 400, 0); });
  EXPECT_EQ(measured.status, KCORAL_TIMING_OK) << measured.error;
  EXPECT_THAT(measured.spans_ns, Each(400U));
}

TEST_F(FakeGpuTest, WorkOfOtherThreadsBelongsToTheCallDuringWhichItWasLaunched) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(50, [](uint32_t i) {
    std::thread first([i] { kernel(1000 + i); });
    first.join();
    std::thread second([i] { fake_gpu_launch("other", 1, 10, 0); });
    second.join();
  });
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(measured.spans_ns[i], 1010U + i);
  EXPECT_EQ(measured.series.stable, 1U);
}

TEST_F(FakeGpuTest, RecordsMayComeInAnyOrder) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const uint32_t seed = std::random_device{}() | 1U;
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Fault fault("SHUFFLED", std::to_string(seed % 1'000'000'007));
  const Measured measured = measure(500, [](uint32_t i) {
    kernel(100 + i);
    kernel(50);
  });
  EXPECT_EQ(measured.status, KCORAL_TIMING_OK) << measured.error;
  for (uint32_t i = 0; i < 500; ++i) EXPECT_EQ(measured.spans_ns[i], 150U + i);
}

TEST_F(FakeGpuTest, MoreRecordsThanABufferHolds) {
  ASSERT_EQ(open(false), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(1000, [](uint32_t) {
    for (int i = 0; i < 40; ++i) kernel(2000);
  });
  EXPECT_EQ(measured.status, KCORAL_TIMING_OK) << measured.error;
  EXPECT_EQ(measured.series.activities, 40'000U);
  EXPECT_THAT(measured.spans_ns, Each(80'000U));
}

TEST_F(FakeGpuTest, RecordsOfOtherKindsAndOfCallsBeforeAreLeftOut) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Fault fault("FOREIGN", "1");
  const Measured measured = measure(3, [](uint32_t) { kernel(77); });
  EXPECT_EQ(measured.status, KCORAL_TIMING_OK) << measured.error;
  EXPECT_THAT(measured.spans_ns, Each(77U));
  EXPECT_EQ(measured.series.activities, 3U);
}

TEST_F(FakeGpuTest, SkippedCallsCountForNothing) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(
      5,
      [](uint32_t i) {
        if (i < 3) return;  // nothing is launched, and nothing is the same
        kernel(i);
      },
      3);
  EXPECT_THAT(measured.spans_ns, ElementsAre(3, 4));
  EXPECT_EQ(measured.series.empty, 0U);
  EXPECT_EQ(measured.series.stable, 1U);
}

TEST_F(FakeGpuTest, CallsThatLaunchNothingAreCounted) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(4, [](uint32_t i) {
    if (i % 2 == 0) kernel(9);
  });
  EXPECT_EQ(measured.status, KCORAL_TIMING_OK);
  EXPECT_THAT(measured.spans_ns, ElementsAre(9, 0, 9, 0));
  EXPECT_EQ(measured.series.empty, 2U);
  EXPECT_EQ(measured.series.stable, 0U);
}

// --- Stability ---

TEST_F(FakeGpuTest, CallsAreStableWhateverTheOrderAndTheTimes) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(6, [](uint32_t i) {
    kernel(100 + i, i % 2 == 0 ? "a" : "b");
    kernel(200 + i, i % 2 == 0 ? "b" : "a");
  });
  EXPECT_EQ(measured.series.stable, 1U);
}

TEST_F(FakeGpuTest, CallsAreNotStableWhenOneDiffersInAnything) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const std::function<void()> differences[] = {
      [] { kernel(10, "other"); },
      [] { fake_gpu_launch("kernel", 2, 10, 0); },
      [] { fake_gpu_copy(10, 10, 0); },
      [] { fake_gpu_memset(1, 10, 10, 0); },
      [] {
        kernel(10);
        kernel(10);
      },
  };
  for (const auto& different : differences) {
    const Measured measured = measure(5, [&](uint32_t i) {
      if (i == 3) {
        different();
      } else {
        kernel(10);
      }
    });
    EXPECT_EQ(measured.status, KCORAL_TIMING_OK) << measured.error;
    EXPECT_EQ(measured.series.stable, 0U);
  }
  const auto copies = [](uint32_t i) { fake_gpu_copy(i < 2 ? 8 : 16, 10, 0); };
  EXPECT_EQ(measure(4, copies).series.stable, 0U);
}

// --- Flush and order ---

TEST_F(FakeGpuTest, WorkThatDoesNotWaitForTheFlushIsNoticedUnlessSynchronised) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const auto beside = [](uint32_t) { fake_gpu_launch("kernel", 1, 5000, 7); };
  EXPECT_GT(measure(10, beside).series.overlapping, 0U);
  const Measured synchronised = measure(10, beside, 0, true);
  EXPECT_EQ(synchronised.series.overlapping, 0U);
  EXPECT_THAT(synchronised.spans_ns, Each(5000U));
}

TEST_F(FakeGpuTest, MarksGoToTheStreamThatIsAskedFor) {
  ASSERT_EQ(open(true, 7), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(measure(10, [](uint32_t) { fake_gpu_launch("kernel", 1, 5000, 7); }).series.overlapping, 0U);
}

TEST_F(FakeGpuTest, WithoutAFlushOnlyCallsThatOverlapEachOtherMatter) {
  ASSERT_EQ(open(false), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(facts.flush_bytes, 0U);
  EXPECT_EQ(measure(10, [](uint32_t) { fake_gpu_launch("kernel", 1, 5000, 7); }).series.overlapping, 0U);
  const auto alternating = [](uint32_t i) { fake_gpu_launch("kernel", 1, 50'000, 7 + i % 2); };
  EXPECT_GT(measure(10, alternating).series.overlapping, 0U);
}

TEST_F(FakeGpuTest, TheFlushIsSmallerWhereMemoryIsScarceButNeverBelowTwiceTheL2) {
  {
    const Fault fault("MEMORY_BYTES", std::to_string(2 * kL2Bytes));
    ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
    EXPECT_EQ(facts.flush_bytes, 2 * kL2Bytes);
    kcoral_timing_close();
  }
  const Fault fault("MEMORY_BYTES", std::to_string(2 * kL2Bytes - 1));
  EXPECT_EQ(open(), KCORAL_TIMING_CUDA_ERROR);
  EXPECT_THAT(error, HasSubstr("too little GPU memory is free to flush the L2 cache"));
  EXPECT_EQ(open(false), KCORAL_TIMING_OK) << error;
}

// --- The context ---

TEST_F(FakeGpuTest, WithoutAContextThePrimaryOneIsTakenAndGivenBack) {
  const int64_t before = fake_gpu_state("contexts");
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(fake_gpu_state("contexts"), before + 1);
  EXPECT_EQ(fake_gpu_state("current"), 1);
  kcoral_timing_close();
  EXPECT_EQ(fake_gpu_state("contexts"), before);
  EXPECT_EQ(fake_gpu_state("current"), 0);
}

TEST_F(FakeGpuTest, ACurrentContextIsUsedAndStays) {
  fake_gpu_use();
  const int64_t before = fake_gpu_state("contexts");
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(fake_gpu_state("contexts"), before);
  kcoral_timing_close();
  EXPECT_EQ(fake_gpu_state("contexts"), before);
  EXPECT_EQ(fake_gpu_state("current"), 1);
  fake_gpu_leave();
}

TEST_F(FakeGpuTest, AContextThatTheFunctionLeavesCurrentStaysSo) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Measured measured = measure(3, [](uint32_t) {
    fake_gpu_use_other_context();
    kernel(10);
  });
  EXPECT_EQ(measured.status, KCORAL_TIMING_OK) << measured.error;
  EXPECT_EQ(fake_gpu_state("current"), 2);
  kcoral_timing_close();
  EXPECT_EQ(fake_gpu_state("current"), 2);
  fake_gpu_leave();
}

TEST_F(FakeGpuTest, TheDeviceIsNamed) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_STREQ(facts.pci_bus_id, "00000000:1A:00.0");
  EXPECT_EQ(facts.cupti_version, 130001U);
}

// --- What goes wrong ---

struct Failure {
  const char* fault;
  const char* value;
  kcoral_timing_status status;
  const char* message;
};

TEST_F(FakeGpuTest, WhatKeepsASessionFromOpeningIsSaidAndLeavesNothing) {
  const Failure failures[] = {
      {"INIT_ERROR", "100", KCORAL_TIMING_UNAVAILABLE, "CUDA_ERROR_NO_DEVICE"},
      {"SUBSCRIBER", "Kineto", KCORAL_TIMING_OTHER_CLIENT, "another profiler in this process has taken CUPTI (Kineto)"},
      {"SUBSCRIBER", "Nsight Compute", KCORAL_TIMING_UNAVAILABLE, "under a tool such as ncu or nsys"},
      {"SUBSCRIBE_ERROR", "35", KCORAL_TIMING_UNAVAILABLE, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"},
      {"SUBSCRIBE_ERROR", "15", KCORAL_TIMING_UNAVAILABLE, "may not fit the driver's"},
      {"REGISTER_ERROR", "999", KCORAL_TIMING_UNAVAILABLE, "error 999"},
      {"ENABLE_ERROR", "7", KCORAL_TIMING_UNAVAILABLE, "error 7"},
      {"MEMORY_BYTES", "1", KCORAL_TIMING_CUDA_ERROR, "flush_l2"},
  };
  for (const Failure& failure : failures) {
    const Fault fault(failure.fault, failure.value);
    EXPECT_EQ(open(), failure.status) << failure.message;
    EXPECT_THAT(error, HasSubstr(failure.message));
    expect_nothing_left();
    EXPECT_EQ(fake_gpu_state("current"), 0);
    EXPECT_EQ(fake_gpu_state("contexts"), 0);
  }
  EXPECT_EQ(open(), KCORAL_TIMING_OK) << error;
}

TEST_F(FakeGpuTest, WhatGoesWrongInASeriesIsSaidAndTheNextOneIsGood) {
  const Failure failures[] = {
      {"DROPPED", "7", KCORAL_TIMING_RECORDS_LOST, "CUPTI dropped 3 records"},
      {"LOST", "3", KCORAL_TIMING_RECORDS_LOST, "CUPTI did not report everything"},
      {"TWICE", "3", KCORAL_TIMING_RECORDS_LOST, "more than once"},
      {"UNTIMED", "2", KCORAL_TIMING_RECORDS_LOST, "could not take the time"},
      {"UNREADABLE", "1", KCORAL_TIMING_RECORDS_LOST, "cannot be read"},
      {"LATE", "100", KCORAL_TIMING_RECORDS_LOST, "11 of 11 marks"},
      {"FLUSH_ERROR", "999", KCORAL_TIMING_UNAVAILABLE, "error 999"},
      {"MEMSET_ERROR", "700", KCORAL_TIMING_CUDA_ERROR, "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access"},
      {"SYNCHRONIZE_ERROR", "700", KCORAL_TIMING_CUDA_ERROR, "CUDA error 700"},
  };
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  for (const Failure& failure : failures) {
    {
      const Fault fault(failure.fault, failure.value);
      const Measured measured = measure(10, [](uint32_t) { kernel(10); });
      EXPECT_EQ(measured.status, failure.status) << failure.message;
      EXPECT_THAT(measured.error, HasSubstr(failure.message));
    }
    const Measured good = measure(10, [](uint32_t) { kernel(20); });
    EXPECT_EQ(good.status, KCORAL_TIMING_OK) << "after " << failure.message << ": " << good.error;
    EXPECT_THAT(good.spans_ns, Each(20U));
  }
}

TEST_F(FakeGpuTest, RecordsMayComeLate) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  const Fault fault("LATE", "5");
  EXPECT_THAT(measure(10, [](uint32_t) { kernel(10); }).spans_ns, Each(10U));
}

TEST_F(FakeGpuTest, TheFirstFailureIsTheOneThatIsReported) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  ASSERT_EQ(start(5), KCORAL_TIMING_OK);
  {
    const Fault fault("MEMSET_ERROR", "700");
    EXPECT_NE(kcoral_timing_mark(), 0);
  }
  const Fault fault("SYNCHRONIZE_ERROR", "719");
  EXPECT_NE(kcoral_timing_mark(), 0);
  EXPECT_THAT(finish(5).error, HasSubstr("700"));
}

TEST_F(FakeGpuTest, AnotherClientThatIsIdleIsFlagged) {
  const Fault fault("SUBSCRIBER", "Kineto");
  ASSERT_EQ(open(true, 0, true), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(facts.other_client, 1U);
  EXPECT_THAT(measure(3, [](uint32_t) { kernel(10); }).spans_ns, Each(10U));
}

TEST_F(FakeGpuTest, AToolThatStartedTheProcessIsNeverIdle) {
  const Fault fault("SUBSCRIBER", "?");
  ::setenv("CUDA_INJECTION64_PATH", "/opt/tool.so", 1);
  EXPECT_EQ(open(true, 0, true), KCORAL_TIMING_UNAVAILABLE);
  ::unsetenv("CUDA_INJECTION64_PATH");
  EXPECT_THAT(error, HasSubstr("ncu or nsys"));
}

TEST_F(FakeGpuTest, WhoeverUsesCuptiNextMeetsNothingOfOurs) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  kcoral_timing_close();
  // A careless one, that takes the functions for buffers which are there.
  void* cupti = dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(cupti, nullptr);
  const auto enable = reinterpret_cast<int (*)(int)>(dlsym(cupti, "cuptiActivityEnable"));
  const auto disable = reinterpret_cast<int (*)(int)>(dlsym(cupti, "cuptiActivityDisable"));
  const auto flush = reinterpret_cast<int (*)(uint32_t)>(dlsym(cupti, "cuptiActivityFlushAll"));
  const auto dropped =
      reinterpret_cast<int (*)(void*, uint32_t, size_t*)>(dlsym(cupti, "cuptiActivityGetNumDroppedRecords"));
  EXPECT_EQ(enable(10), 0);
  kernel(10);
  EXPECT_EQ(flush(1), 0);
  EXPECT_EQ(disable(10), 0);
  size_t count = 0;
  EXPECT_EQ(dropped(nullptr, 0, &count), 0);
  EXPECT_EQ(count, 1U);
}

// --- How it is called ---

TEST_F(FakeGpuTest, OneSessionAtATime) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(open(), KCORAL_TIMING_MISUSE);
  EXPECT_THAT(error, HasSubstr("one at a time"));
  // The one that is open goes on.
  EXPECT_THAT(measure(2, [](uint32_t) { kernel(10); }).spans_ns, Each(10U));
}

TEST_F(FakeGpuTest, SessionsAndSeriesCanFollowEachOther) {
  for (int session = 0; session < 5; ++session) {
    ASSERT_EQ(open(session % 2 == 0), KCORAL_TIMING_OK) << error;
    for (uint32_t calls = 1; calls < 5; ++calls) {
      EXPECT_THAT(measure(calls, [](uint32_t) { kernel(10); }).spans_ns, Each(10U));
    }
    kcoral_timing_close();
    expect_nothing_left();
  }
}

TEST_F(FakeGpuTest, MisuseIsSaid) {
  EXPECT_EQ(start(1), KCORAL_TIMING_MISUSE);
  EXPECT_NE(kcoral_timing_mark(), 0);
  EXPECT_EQ(finish(1).status, KCORAL_TIMING_MISUSE);
  kcoral_timing_close();
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_NE(kcoral_timing_mark(), 0) << "no series was started";
  EXPECT_EQ(finish(1).status, KCORAL_TIMING_MISUSE);
  EXPECT_EQ(start(0), KCORAL_TIMING_MISUSE);
  EXPECT_EQ(start(2'000'001), KCORAL_TIMING_MISUSE);
  ASSERT_EQ(start(2), KCORAL_TIMING_OK);
  EXPECT_EQ(kcoral_timing_mark(), 0);
  EXPECT_EQ(kcoral_timing_mark(), 0);
  EXPECT_NE(kcoral_timing_mark(), 0);
  EXPECT_THAT(finish(2).error, HasSubstr("more calls than the 2"));
  ASSERT_EQ(start(2), KCORAL_TIMING_OK);
  EXPECT_EQ(kcoral_timing_mark(), 0);
  EXPECT_EQ(finish(1, 1).status, KCORAL_TIMING_MISUSE) << "nothing is left after those that are skipped";
  ASSERT_EQ(start(2), KCORAL_TIMING_OK);
  EXPECT_EQ(kcoral_timing_mark(), 0);
  EXPECT_EQ(finish(0).status, KCORAL_TIMING_MISUSE) << "there is no room";
}

TEST_F(FakeGpuTest, ClosingInTheMiddleOfASeriesPutsEverythingBack) {
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  ASSERT_EQ(start(5), KCORAL_TIMING_OK);
  EXPECT_EQ(kcoral_timing_mark(), 0);
  kernel(10);
  kcoral_timing_close();
  expect_nothing_left();
  EXPECT_EQ(fake_gpu_state("current"), 0);
}

// --- The device ---

TEST_F(FakeGpuTest, TheDevicesState) {
  kcoral_device_facts device{};
  kcoral_device_state("00000000:1A:00.0", &device);
  EXPECT_EQ(device.sm_clock_mhz, 1980);
  EXPECT_EQ(device.temperature_c, 41);
  EXPECT_EQ(device.processes, 3);
  EXPECT_EQ(device.has_clock_event_reasons, 1);
  EXPECT_EQ(device.clock_event_reasons, 5U);
  kcoral_device_state("no such device", &device);
  EXPECT_EQ(device.sm_clock_mhz, -1);
  EXPECT_EQ(device.temperature_c, -1);
  EXPECT_EQ(device.processes, -1);
  EXPECT_EQ(device.has_clock_event_reasons, 0);
}

}  // namespace
}  // namespace kcoral::timing
