#include <cstdio>
#include <cstdlib>

#include "tests/support/fake_gpu/fake_gpu.h"

int64_t fake_gpu_fault(const char* name) {
  char variable[64];
  snprintf(variable, sizeof variable, "FAKE_GPU_%s", name);
  const char* value = getenv(variable);
  if (value == nullptr || *value == '\0') return 0;
  return strtoll(value, nullptr, 10);
}
