// Clients that send one program after another over kept-alive connections.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "bench/samples.h"

namespace kcoral::bench {

struct Load {
  uint16_t port = 0;
  int clients = 1;
  std::chrono::milliseconds duration{};
  std::string program;  // JSON
  std::string path = "/execute";
  std::string expected = R"("status":"COMPLETED")";  // in each answer's body
};

/// Every answer must be as expected; the first that is not is the error. Latency: first byte sent to last byte
/// received.
Result<Series> run_load(const Load& load);

}  // namespace kcoral::bench
