// A session on the fake GPU (tests/support/fake_gpu), through the public C interface.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "executor/timing/timing.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace kcoral::timing {

/// Plays a fault while it lives.
class Fault {
 public:
  Fault(const std::string& name, const std::string& value) : variable_("FAKE_GPU_" + name) {
    ::setenv(variable_.c_str(), value.c_str(), 1);
  }
  ~Fault() { ::unsetenv(variable_.c_str()); }
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;

 private:
  std::string variable_;
};

struct Measured {
  int status = 0;
  std::string error;
  kcoral_timing_series series{};
  std::vector<uint64_t> spans_ns;
};

class FakeGpuTest : public testing::Test {
 protected:
  static constexpr const char* kCandidates = "/nonexistent/libcupti.so.13\nlibcupti.so.13";

  void TearDown() override {
    kcoral_timing_close();
    expect_nothing_left();
  }

  /// Whatever happened, CUPTI and the device are as they were.
  static void expect_nothing_left() {
    for (const char* name : {"subscribers", "kinds", "domains", "buffers", "memory_bytes"}) {
      EXPECT_EQ(fake_gpu_state(name), 0) << name;
    }
  }

  int open(bool flush_l2 = true, uint64_t stream = 0, bool others_are_idle = false) {
    const kcoral_timing_config config{kCandidates, stream, flush_l2, others_are_idle};
    return said(kcoral_timing_open(&config, &facts, error, sizeof error));
  }
  int start(uint32_t calls_max, bool synchronise = false) {
    return said(kcoral_timing_start(calls_max, synchronise, error, sizeof error));
  }
  Measured finish(uint32_t calls, uint32_t skip = 0) {
    Measured measured;
    measured.spans_ns.resize(calls - skip);
    measured.status = said(kcoral_timing_finish(skip, &measured.series, measured.spans_ns.data(),
                                                measured.spans_ns.size(), error, sizeof error));
    measured.error = error;
    return measured;
  }
  /// `calls` calls of `call`, which gets their number.
  template <typename Call>
  Measured measure(uint32_t calls, const Call& call, uint32_t skip = 0, bool synchronise = false) {
    EXPECT_EQ(start(calls, synchronise), KCORAL_TIMING_OK) << error;
    for (uint32_t i = 0; i < calls && kcoral_timing_mark() == 0; ++i) call(i);
    return finish(calls, skip);
  }

  /// An error has a message, and nothing else has one.
  int said(int status) {
    EXPECT_EQ(status == KCORAL_TIMING_OK, std::string(error).empty()) << error;
    return status;
  }

  kcoral_timing_facts facts{};
  char error[1024] = {};
};

}  // namespace kcoral::timing
