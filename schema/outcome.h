// How a program's run ended, and the answer that a client reads: contract sections 5, 6 and 7.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/uuid.h"
#include "schema/program.h"
#include "schema/value.h"

namespace kcoral::schema {

/// Section 6. Who caused it: parse, compile, runtime, correctness, gpu_access, serialization: the program;
/// unavailable: the environment; engine: our own code.
enum class InstructionErrorKind {
  kParse,
  kCompile,
  kRuntime,
  kCorrectness,
  kGpuAccess,
  kSerialization,
  kUnavailable,
  kEngine,
};

std::string_view wire_name(InstructionErrorKind kind);
std::optional<InstructionErrorKind> instruction_error_kind_from(std::string_view wire_name);

/// What an error of the kind gpu_access says besides.
struct GpuAccess {
  std::string cuda_call;                             // the first one that was seen
  std::string location;                              // "file:line", or what else is known
  std::optional<std::string> interfered_request_id;  // who got its GPU last, since it was given back
};

struct InstructionError {
  InstructionErrorKind kind = InstructionErrorKind::kEngine;
  std::string message;  // UTF-8; cut to limits::kErrorMessageBytesMax
  InstructionIndex instruction_index = 0;
  std::string instruction_op;
  std::optional<std::string> instruction_id;  // not for a return
  std::string traceback;                      // UTF-8; the last limits::kTracebackBytesMax bytes
  std::optional<GpuAccess> gpu_access = {};   // exactly when the kind is kGpuAccess
};

struct ReturnedValue {
  std::string key;
  std::string wire_text;  // JSON
};

/// What an executor reports when a program's run is over.
struct Outcome {
  enum class Ending { kCompleted, kFailed, kTimedOut, kCancelled };
  Ending ending = Ending::kFailed;
  std::optional<InstructionError> error;  // exactly when kFailed
  std::string message;                    // for kTimedOut and kCancelled: what a person should know

  std::vector<ReturnedValue> returns;  // in the order of the program
  std::vector<Part> parts;             // numbered depth first in the order of the returns
  std::string stdout_bytes;            // as captured, cut at the limit; decoded when rendered
  std::string stderr_bytes;
  bool stdout_truncated = false;
  bool stderr_truncated = false;

  double elapsed_ms = 0;
  double lease_wait_ms = 0;
  double lease_held_ms = 0;
  // Of a program for several GPUs; empty ids when it ended before it had them.
  size_t gpu_count = 1;
  std::vector<int> gpu_ids;
};

/// The members of a COMPLETED or FAILED answer from "results" to the end, without braces:
/// `["gpu_count":2,"gpu_ids":[0,1],]"results":{...},"stdout":"...","stderr":"...","stdout_truncated":false,
/// "stderr_truncated":false[,"error":{...}]`, in one line.
/// Requires: ending is kCompleted or kFailed.
std::string render_outcome_members(const Outcome& outcome);

struct OutcomeTimes {
  double queue_ms = 0;
  double elapsed_ms = 0;
  double lease_wait_ms = 0;
  double lease_held_ms = 0;
};

/// The whole `result` document around rendered members.
std::string render_result_document(bool completed, const Uuid& request_id, const OutcomeTimes& times,
                                   std::string_view outcome_members);

/// The "stdout" or "stderr" of a result document; empty in a document without.
Result<std::string> output_in(std::string_view document, std::string_view member);

/// An answer as it goes to a client and as it is stored: everything that must be the same byte for byte each time.
/// Immutable once built, so it may be shared between threads.
struct Answer {
  int http_status = 200;
  std::string document;         // JSON
  std::vector<Part> parts;      // empty: the body is `document` alone
  std::string boundary;         // set exactly when there are parts
  int retry_after_seconds = 0;  // 0: no such header

  std::string content_type() const;
  uint64_t body_bytes() const;

  /// The body in order, without copies of content: framing, `document` (as long as this answer lives), sealed memory.
  using Segment = std::variant<std::string, std::string_view, Extent>;
  std::vector<Segment> body() const;
};

/// JSON where `parts` is empty, multipart otherwise, with a fresh random boundary.
Answer make_result_answer(std::string document, std::vector<Part> parts);
/// Section 7. `busy` and `rate_limited` carry Retry-After.
Answer make_error_answer(const Uuid& request_id, const Error& error, int retry_after_seconds = 0);
/// Section 5: missing blobs in program order.
Answer make_cache_miss_answer(const Uuid& request_id, const std::vector<Digest>& missing);

}  // namespace kcoral::schema
