// From what an executor reports to what the store keeps: the state, the answer and the reason of a request's end.
// Pure functions.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/uuid.h"
#include "executor/executor.h"
#include "store/store.h"

namespace kcoral::scheduler {

/// Contract section 5. An answer whose body would pass `response_bytes_max` becomes `response_too_large` (state
/// failed).
store::Completion make_completion(const Uuid& request_id, std::chrono::microseconds queued,
                                  const executor::RunReport& report, uint64_t response_bytes_max);

}  // namespace kcoral::scheduler
