// A Clearance whose devices are clear, or stuck, when the test says so.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "devices/clearance.h"

namespace kcoral::scheduler {

class FakeClearance : public devices::Clearance {
 public:
  struct Asked {
    int device;
    std::vector<pid_t> executors;
    Handlers handlers;
  };
  void when_clear(int device, std::vector<pid_t> executors, Handlers handlers) override {
    asked.push_back({device, std::move(executors), std::move(handlers)});
  }
  std::deque<Asked> asked;
};

}  // namespace kcoral::scheduler
