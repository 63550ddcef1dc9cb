// What a DurableStore counts while it works; figures.h says what each means. Thread-safe.
#pragma once

#include <array>

#include "base/metrics.h"
#include "schema/state.h"
#include "store/client_counts.h"

namespace kcoral::store {

struct Meters {
  Counter admitted_synchronous;
  Counter admitted_polled;
  Counter refused_queue_full;
  Counter refused_client_limit;
  Counter requeued_lost;
  Counter requeued_unstarted;
  Counter blobs_missing;
  std::array<Counter, schema::kStateCount> ended;
  ClientCounts clients;
  Histogram queued{kProgramSecondsBounds};
  Histogram ran{kProgramSecondsBounds};
};

}  // namespace kcoral::store
