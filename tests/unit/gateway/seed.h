// The seed of a randomised test: printed, and settable to repeat a failure.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kcoral::gateway {

inline uint64_t test_seed() {
  const char* given = std::getenv("KCORAL_TEST_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("KCORAL_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace kcoral::gateway
