// What the store has counted since it was opened, and how much it holds. Plain values.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "schema/state.h"

namespace kcoral::store {

/// How many requests of a client have ended.
struct ClientFigure {
  std::string client;
  uint64_t ended = 0;
};

/// The clients with the most, and the sum of all others, none of which shrinks: who passes one that is among the
/// busiest takes its place with as many. Only somebody who was forgotten meanwhile begins anew.
struct ClientFigures {
  std::vector<ClientFigure> busiest;  // limits::kClientsNamedMax at most, the busiest first
  uint64_t ended_of_others = 0;
};

struct Figures {
  // Requests.
  std::optional<std::chrono::nanoseconds> oldest_queued_age;  // since its submission; none: nothing is queued
  uint64_t admitted_synchronous = 0;
  uint64_t admitted_polled = 0;
  uint64_t refused_queue_full = 0;
  uint64_t refused_client_limit = 0;
  uint64_t requeued_lost = 0;                         // its run was lost under it, and an attempt was left
  uint64_t requeued_unstarted = 0;                    // it was assigned, and could not be started
  std::array<uint64_t, schema::kStateCount> ended{};  // by state; of those that are not terminal 0
  ClientFigures clients;
  HistogramView queued;  // from being queued to being assigned, of each assignment
  HistogramView ran;     // of each run whose executor said how it ended

  // The database.
  HistogramView committed;            // each transaction, its sync included
  uint64_t operations_committed = 0;  // several share a transaction

  // Content.
  uint64_t blob_cache_hits = 0;  // of a blob that a run needs
  uint64_t blob_cache_misses = 0;
  uint64_t blob_cache_bytes = 0;
  uint64_t blobs_received = 0;
  uint64_t blob_bytes_received = 0;
  uint64_t blobs_missing = 0;  // that a submission named, neither sent along nor held
  uint64_t answer_bytes = 0;   // kept now
  uint64_t answers_pruned = 0;
  uint64_t requests_forgotten = 0;
};

}  // namespace kcoral::store
