// The guard without Python: tests/unit/runtime/test_timing.py has it with, and without a driver in the process.
#include <atomic>
#include <thread>

#include "tests/unit/timing/fake_gpu_fixture.h"

namespace kcoral::timing {
namespace {

class GuardTest : public FakeGpuTest {
 protected:
  int begin() { return kcoral_guard_begin(kCandidates, "/nowhere", "/work"); }
  kcoral_guard_report end() {
    kcoral_guard_report report{};
    kcoral_guard_end(&report);
    return report;
  }
  void TearDown() override {
    end();
    FakeGpuTest::TearDown();
    fake_gpu_leave();
  }
};

TEST_F(GuardTest, SeesNothingWhereNothingIsCalled) {
  EXPECT_EQ(begin(), KCORAL_GUARD_CALLS);
  const auto report = end();
  EXPECT_EQ(report.calls, 0U);
  EXPECT_STREQ(report.call, "");
  EXPECT_STREQ(report.location, "");
}

TEST_F(GuardTest, NamesTheFirstCallAndCountsAll) {
  ASSERT_EQ(begin(), KCORAL_GUARD_CALLS);
  fake_gpu_call("cudaMalloc", 1);
  fake_gpu_call("cuMemAlloc_v2", 0);
  fake_gpu_call("cudaFree", 1);
  const auto report = end();
  EXPECT_EQ(report.calls, 3U);
  EXPECT_STREQ(report.call, "cudaMalloc");
  EXPECT_STREQ(report.location, "a native thread");
}

TEST_F(GuardTest, SeesTheDriversOwnCalls) {
  ASSERT_EQ(begin(), KCORAL_GUARD_CALLS);
  fake_gpu_call("cuLaunchKernel", 0);
  EXPECT_STREQ(end().call, "cuLaunchKernel");
}

TEST_F(GuardTest, SeesOnlyWhatLiesBetween) {
  fake_gpu_call("cudaMalloc", 1);
  ASSERT_EQ(begin(), KCORAL_GUARD_CALLS);
  fake_gpu_call("cudaFree", 1);
  EXPECT_STREQ(end().call, "cudaFree");
  fake_gpu_call("cudaMalloc", 1);
  ASSERT_EQ(begin(), KCORAL_GUARD_CALLS);
  EXPECT_EQ(end().calls, 0U);
  EXPECT_EQ(end().calls, 0U) << "none has begun";
}

TEST_F(GuardTest, CallsFromManyThreadsAreAllCounted) {
  ASSERT_EQ(begin(), KCORAL_GUARD_CALLS);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int call = 0; call < 100; ++call) fake_gpu_call("cudaLaunchKernel", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto report = end();
  EXPECT_EQ(report.calls, 800U);
  EXPECT_STREQ(report.call, "cudaLaunchKernel");
}

TEST_F(GuardTest, EndingWhileOthersCallIsSafe) {
  std::atomic<bool> is_over{false};
  std::thread caller([&] {
    while (!is_over) fake_gpu_call("cudaLaunchKernel", 1);
  });
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(begin(), KCORAL_GUARD_CALLS);
    const auto report = end();
    EXPECT_EQ(report.calls > 0, report.call[0] != '\0');
  }
  is_over = true;
  caller.join();
}

TEST_F(GuardTest, WhereCuptiIsTakenTheFirstUseOfCudaIsSeenStill) {
  const Fault fault("SUBSCRIBER", "Kineto");
  ASSERT_EQ(begin(), KCORAL_GUARD_INITIALISATION);
  EXPECT_EQ(end().calls, 0U);
  ASSERT_EQ(begin(), KCORAL_GUARD_INITIALISATION);
  fake_gpu_use();
  const auto report = end();
  EXPECT_EQ(report.calls, 1U);
  EXPECT_STREQ(report.call, "cuInit");
  EXPECT_STREQ(report.location, "somewhere in this run");
}

TEST_F(GuardTest, WhereCuptiIsTakenAndCudaInUseNothingIsSeen) {
  fake_gpu_use();
  const Fault fault("SUBSCRIBER", "Kineto");
  ASSERT_EQ(begin(), KCORAL_GUARD_OFF);
  fake_gpu_call("cudaMalloc", 1);
  EXPECT_EQ(end().calls, 0U);
}

TEST_F(GuardTest, SessionsAndGuardsExcludeEachOther) {
  ASSERT_EQ(begin(), KCORAL_GUARD_CALLS);
  EXPECT_EQ(open(), KCORAL_TIMING_MISUSE);
  EXPECT_THAT(error, testing::HasSubstr("cpu_only"));
  EXPECT_EQ(begin(), KCORAL_GUARD_OFF);
  fake_gpu_call("cudaMalloc", 1);
  EXPECT_EQ(end().calls, 1U) << "the first goes on";
  ASSERT_EQ(open(), KCORAL_TIMING_OK) << error;
  EXPECT_EQ(begin(), KCORAL_GUARD_OFF);
  fake_gpu_call("cudaMalloc", 1);
  EXPECT_EQ(end().calls, 0U);
}

}  // namespace
}  // namespace kcoral::timing
