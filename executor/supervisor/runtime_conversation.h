// What a runtime that has a program may say, and in which order (docs/frames.md, "Executor and runtime").
//
// A runtime shares its process with the program, so nothing of it is believed: every frame is checked against the
// program and against what came before, values go through schema::wire_value, and the first frame that does not fit
// ends the conversation with an error that says why. Knows no sockets and no processes. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/memfd.h"
#include "executor/frame.h"
#include "schema/outcome.h"
#include "schema/program.h"

namespace kcoral::executor {

/// `instructions[3] (run "x")`; a return is named by its key.
std::string describe(const schema::Program& program, schema::InstructionIndex index);

class RuntimeConversation {
 public:
  enum class Meaning {
    kProgress,      // taken note of
    kLeaseRequest,  // it waits for lease_granted
    kLeaseRelease,
    kOver,  // every instruction ran, or one failed: `error` tells
  };
  /// Takes an audit record: an object with "event".
  using AddRecord = std::function<void(const nlohmann::ordered_json& record)>;

  /// `program` outlives it.
  RuntimeConversation(const schema::Program& program, Clock& clock, AddRecord add_record);

  /// kEngine: the frame is malformed or out of order. kEnvironment: what the runtime sent cannot be read for lack of
  /// memory.
  Result<Meaning> take(Frame frame);

  /// The instruction that runs, or the one that would be next (the last one when all are done).
  schema::InstructionIndex current() const;
  bool has_started() const { return next_ > 0 || running_; }
  bool is_instruction_running() const { return running_; }
  /// An error of the current instruction.
  schema::InstructionError error_here(schema::InstructionErrorKind kind, std::string message) const;

  /// What the runtime reported as the failure of an instruction.
  const std::optional<schema::InstructionError>& error() const { return error_; }
  /// Everything that was returned so far.
  std::vector<schema::ReturnedValue> take_returns() { return std::move(returns_); }
  std::vector<schema::Part> take_parts() { return std::move(parts_); }
  /// JSON array of {"key","type","size"} of the returns.
  std::string results_summary() const { return summary_.dump(); }

 private:
  Status take_started(const Frame& frame);
  /// What may start next, once the instruction that runs has ended.
  uint64_t due() const { return running_ ? next_ + uint64_t{1} : next_; }
  /// The instruction that runs, if one does, has ended well.
  Status finish_running();
  /// kResponseTooLarge: the program returned more than it may.
  Status take_returned(Frame frame);
  Result<std::shared_ptr<const SealedMemory>> adopt_returned(UniqueFd fd);
  Status take_failed(Frame frame);
  Status check_here(const Frame& frame) const;
  void fail_here(schema::InstructionErrorKind kind, std::string message);
  void record_instruction(const char* event, std::optional<double> ms);
  void record_returned(const schema::ReturnedValue& returned, size_t first_part);

  const schema::Program& program_;
  Clock& clock_;
  AddRecord add_record_;

  bool running_ = false;      // next_ was started, and nothing was said since that it has ended
  bool value_taken_ = false;  // of the return that runs
  bool lease_held_ = false;   // requested and not released
  bool over_ = false;
  schema::InstructionIndex next_ = 0;
  SteadyTime started_at_{};

  std::optional<schema::InstructionError> error_;
  uint64_t returned_bytes_ = 0;  // text and data of all returns
  std::vector<schema::ReturnedValue> returns_;
  std::vector<schema::Part> parts_;
  nlohmann::ordered_json summary_ = nlohmann::ordered_json::array();
};

}  // namespace kcoral::executor
