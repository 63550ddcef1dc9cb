// What can be asked about requests: their status, history, programs, audit and output.
//
// It promises: what is answered is one committed state, no older than the call; what a request has ended with does not
// change any more. Thread-safe. The functions return at once; callbacks run on the store's own threads, or, once the
// store is closed, with kBusy on the caller's before the call returns, and must not block. An unknown id is kNotFound.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/sha256.h"
#include "base/uuid.h"
#include "schema/outcome.h"
#include "schema/state.h"

namespace kcoral::store {

/// What the status document says of a request: contract section 9.
struct RequestStatus {
  Uuid request_id;
  std::string owner;
  std::string client;
  schema::State state = schema::State::kQueued;
  int priority = 0;
  int attempt = 0;
  int max_attempts = 1;
  std::map<std::string, std::string> labels;
  WallTime submitted_at{};
  std::optional<WallTime> started_at;
  std::optional<WallTime> finished_at;
  std::optional<uint64_t> queue_position;     // while queued: its client's requests ahead of it; none beyond
                                              // limits::kQueuePositionMax
  std::vector<int> gpu_ids;                   // that it leases or leased, in order
  std::string executor;                       // empty until it is assigned
  std::optional<schema::OutcomeTimes> times;  // once it has ended
  Digest program_sha256;
  std::string error_kind;  // empty: no error
  std::string error_message;
  std::string results_summary = "[]";  // JSON array of {"key","type","size"}
  bool cancel_requested = false;
};

/// Where a page of the history ended: the next one begins behind it.
struct HistoryCursor {
  int64_t submitted_us = 0;
  int64_t seq = 0;
  auto operator<=>(const HistoryCursor&) const = default;
};

/// Which requests, newest first. What is not set does not matter.
struct HistoryQuery {
  std::optional<schema::State> state;
  std::optional<std::pair<std::string, std::optional<std::string>>> label;  // a name, and its value
  std::optional<std::string> client;
  std::optional<WallTime> since;  // submitted then or later
  std::optional<WallTime> until;  // submitted before
  std::optional<HistoryCursor> after;
  size_t count_max = 50;
};

struct HistoryPage {
  std::vector<RequestStatus> requests;
  std::optional<HistoryCursor> next;  // none: nothing is left
};

enum class OutputStream { kStdout, kStderr };

/// Captured output from an offset on. Offsets count the bytes of the decoded text, which an answer has, too: what was
/// read while a request ran is a beginning of what it ends with.
struct OutputPiece {
  std::string text;  // UTF-8
  uint64_t next_offset = 0;
  bool is_complete = false;  // the request has ended: nothing will follow
};

class Lookups {
 public:
  virtual ~Lookups() = default;

  virtual void status(const Uuid& request_id, std::function<void(Result<RequestStatus>)> done) = 0;
  virtual void history(const HistoryQuery& query, std::function<void(Result<HistoryPage>)> done) = 0;
  /// The program as it was submitted, byte for byte.
  virtual void program(const Uuid& request_id, std::function<void(Result<std::string>)> done) = 0;
  /// The audit records in order, each a JSON object with "seq", "at" and "event".
  virtual void audit(const Uuid& request_id, std::function<void(Result<std::vector<std::string>>)> done) = 0;
  /// kParse for an offset beyond what there is. kGone when the answer of a request that has ended was pruned.
  virtual void output(const Uuid& request_id, OutputStream stream, uint64_t offset,
                      std::function<void(Result<OutputPiece>)> done) = 0;
};

}  // namespace kcoral::store
