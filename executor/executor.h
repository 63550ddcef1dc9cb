// One slot as the scheduler sees it: it takes a program, says what happens to it, and says how it ended.
//
// An Executor belongs to one EventLoop: every function is called and every event delivered on that loop's thread. For
// each accepted `run` exactly one of `on_outcome` and `on_lost` follows, also when the executor process dies. For each
// `on_lease_asked` one `on_lease_ended` follows, or `on_lost`, with which all of its leases have ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/memfd.h"
#include "base/sha256.h"
#include "base/unique_fd.h"
#include "base/uuid.h"
#include "executor/lease_ask.h"
#include "executor/output_frame.h"
#include "schema/outcome.h"

namespace kcoral::executor {

struct Assignment {
  Uuid request_id;
  int attempt = 1;
  std::chrono::milliseconds timeout{};
  uint64_t output_limit_bytes = 0;
  int gpu_count = 0;  // how many devices it leases at once when it needs them; 0 on a CPU server
  int priority = 0;   // among those who wait for a device
  std::shared_ptr<const SealedMemory> program;
  std::vector<std::pair<Digest, std::shared_ptr<const SealedMemory>>> blobs;  // distinct
};

/// How a run ended, ready to be stored: the answer's members are rendered, its parts are sealed and digested.
struct RunReport {
  schema::Outcome::Ending ending = schema::Outcome::Ending::kFailed;
  std::string error_kind;       // wire name; of the failed instruction, or empty
  std::string error_message;    // of the failed instruction; for kTimedOut and kCancelled what a person should know
  std::string results_summary;  // JSON array of {"key","type","size"}
  std::shared_ptr<const SealedMemory>
      outcome_members;  // schema::render_outcome_members; null unless completed or failed
  std::vector<schema::Part> parts;
  double elapsed_ms = 0;
  double lease_wait_ms = 0;
  double lease_held_ms = 0;
};

/// An audit record of a run: see store::AuditRecord, which has the same shape.
struct RunRecord {
  WallTime at;
  std::string members;
};

struct ExecutorInfo {
  std::string python;                           // path
  std::map<std::string, std::string> versions;  // "python", and what is installed of torch, numpy, ...
};

class ExecutorEvents {
 public:
  virtual ~ExecutorEvents() = default;
  /// The slot can take a program: at first, and again after each run once its processes are gone.
  virtual void on_idle(const ExecutorInfo& info) = 0;
  /// The program's runtime has it now; `pid` as the host sees it (0 if it was gone before it could be asked for).
  virtual void on_running(int pid) = 0;
  virtual void on_records(std::vector<RunRecord> records) = 0;
  /// The program prints: what is kept of that stream, its raw bytes, of which the first have come. The memory grows as
  /// more does, until the outcome; it can only be read. Once for a stream at most, and before the outcome.
  virtual void on_output(OutputStream stream, std::shared_ptr<const UniqueFd> memory) = 0;
  virtual void on_outcome(RunReport report) = 0;
  /// It waits for `grant_lease` or `deny_lease`, or withdraws.
  virtual void on_lease_asked(const LeaseAsk& ask) = 0;
  /// A lease that was asked for is withdrawn or given back; once for each, unless the executor is lost before.
  /// `processes_ended`: those of its holder have ended, as far as the executor can tell.
  virtual void on_lease_ended(uint64_t id, bool processes_ended) = 0;
  /// After the outcome: processes of the program could not be ended, and the slot stays out of use. `on_idle` comes
  /// once they are gone after all.
  virtual void on_quarantined(std::string reason) = 0;
  /// The executor died or broke; a run that it had is lost. It restarts itself (with a growing pause) and `on_idle`
  /// comes again, unless `permanent`: then the environment is at fault and `reason` says what to do.
  virtual void on_lost(std::string reason, bool permanent) = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const std::string& name() const = 0;
  /// Of the executor process; 0 while there is none.
  virtual int pid() const = 0;
  /// Those that its programs can see, by the server's numbers; none on a CPU server.
  virtual const std::vector<int>& devices() const = 0;
  virtual void start(ExecutorEvents& events) = 0;
  /// Requires: the last event was on_idle.
  virtual void run(Assignment assignment) = 0;
  /// Requires: it was asked for, and neither granted, denied nor ended.
  virtual void grant_lease(uint64_t id, const std::vector<int>& devices) = 0;
  /// The program fails with that as an `unavailable` error, unless it ends otherwise before. Requires: as for
  /// `grant_lease`, and it is a program's.
  virtual void deny_lease(uint64_t id, const std::string& message) = 0;
  /// While the running program has given its lease back: that request has the device now.
  virtual void tell_device_holder(const Uuid& request_id) = 0;
  /// Ends the running program; `on_outcome` follows with kCancelled unless it had ended already.
  virtual void cancel(const Uuid& request_id) = 0;
};

}  // namespace kcoral::executor
