// One program's run: from its assignment to the moment when nothing of it is left, or its runtime has put itself right
// for another program.
//
// It promises: exactly one outcome is sent, then `on_done` once. Where the outcome itself cannot be made, or the output
// that it needs cannot be kept (no memory, no descriptors), `on_broken` comes instead, and nothing after it. An answer
// (the runtime completed, or an instruction failed) goes out at once; every other ending (deadline, cancel, a runtime
// that died or said what it must not) goes out when the program's processes are gone. Processes that live on for
// limits::kKillWait quarantine the slot and what it has leased: the outcome goes out and says so, the server is told,
// and `on_done` comes when they are gone after all. The first ending wins.
//
// Belongs to its loop's thread. `on_done` and `on_broken` may destroy it only after returning to the loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/frame_channel.h"
#include "executor/outcome_frames.h"
#include "executor/output_frame.h"
#include "executor/run_id.h"
#include "executor/supervisor/run_leases.h"
#include "executor/supervisor/run_records.h"
#include "executor/supervisor/runtime.h"
#include "executor/supervisor/runtime_conversation.h"
#include "schema/outcome.h"

namespace kcoral::executor {

struct RunRequest {
  RunId run;
  std::chrono::milliseconds timeout{};
  uint64_t output_limit_bytes = 0;
  uint64_t memory_bytes_max = 0;  // of all its processes; 0: as much as there is
  LeaseTerms lease_terms;
  size_t blob_count = 0;
  bool keep_runtime = false;  // after an answer, for another program
  std::shared_ptr<const SealedMemory> program;
};

class ProgramRun final : private RuntimeEvents {
 public:
  enum class Aftermath {
    kClean,  // nothing of it is left
    kKept,   // its runtime is, as was wanted, and is ready again
  };
  struct Handlers {
    std::function<void(const nlohmann::json& body, std::vector<OutgoingFd> fds)> send;  // to the server
    std::function<void(Aftermath aftermath)> on_done;
    std::function<void(std::string reason)> on_broken;
  };

  /// Gives `runtime` the program, as soon as it is ready. The deadline runs from here, but not while the program waits
  /// for a lease. An error: nothing of it ran, and `runtime` is left to end with its slot.
  static Result<std::unique_ptr<ProgramRun>> start(EventLoop& loop, DeviceLeases& leases,
                                                   std::unique_ptr<Runtime> runtime, RunRequest request,
                                                   Handlers handlers);
  ~ProgramRun() override;
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  const RunId& run_id() const { return request_.run; }

  /// Requires: it is done.
  std::unique_ptr<Runtime> take_runtime() { return std::move(runtime_); }

  /// A `blobs` frame of the server, about this run.
  Status add_blobs(Frame frame);
  void cancel();
  /// A `device_holder` frame: who has the device that this program gave back.
  Status note_device_holder(const Frame& frame);

 private:
  /// How it ended, before output and times are known.
  struct Verdict {
    schema::Outcome::Ending ending = schema::Outcome::Ending::kFailed;
    std::optional<schema::InstructionError> error;
    std::string message;
  };

  ProgramRun(EventLoop& loop, DeviceLeases& leases, std::unique_ptr<Runtime> runtime, RunRequest request,
             schema::Program program, Handlers handlers);
  void begin();

  void capture_output(OutputStream stream, OutputCapture& capture);
  void show_output(OutputStream stream, const OutputCapture& capture);
  void on_output_failed(const Error& reason);
  /// What there is at this moment. From now on output is nobody's.
  Status take_output(schema::Outcome& outcome);
  void on_runtime_ready() override;
  void on_runtime_failed(const Error& error) override;
  void on_runtime_frame(Frame frame) override;
  void on_runtime_closed(std::optional<Error> error) override;
  void on_runtime_ended() override;
  void on_runtime_gone() override;
  void start_deadline(std::chrono::nanoseconds left);
  void on_deadline();
  void ask_for_lease();
  void on_lease_granted();
  void on_lease_withheld(std::string why);
  void give_lease_back();
  void on_kill_wait_over();
  void recycle();
  void give_up_recycling(const Error& reason);
  void look_at_memory_after(std::chrono::nanoseconds pause);
  void look_at_memory();

  bool is_decided() const { return verdict_.has_value() || runtime_died_ || is_broken_; }
  bool answered_meanwhile();
  /// The runtime puts itself right for another program.
  bool is_recycling() const { return recycle_timer_.has_value(); }
  void answer();
  void fail_run(schema::InstructionErrorKind kind, std::string message);
  void decide(Verdict verdict);
  /// After an answer: the end of a context needs the lease, too, and nobody waits for it. Not for ever: what the
  /// program left running goes on meanwhile, within its memory.
  void end_processes_in_turn();
  void end_processes();
  void stop(std::optional<EventLoop::TimerId>& timer);
  Verdict verdict_on_death() const;
  std::string place() const;
  std::string what_is_quarantined() const;
  Result<std::vector<EncodedFrame>> encode_outcome();
  /// False when it could not be made: then `on_broken` was called, and this run does nothing more.
  bool send_outcome();
  void break_off(std::string reason);
  void forward_blobs();

  EventLoop& loop_;
  std::unique_ptr<Runtime> runtime_;
  RunRequest request_;
  schema::Program program_;
  Handlers handlers_;
  SteadyTime assigned_at_;
  RunRecords records_;
  RuntimeConversation conversation_;

  bool program_sent_ = false;
  std::vector<Frame> waiting_blobs_;
  size_t blobs_received_ = 0;

  std::optional<Verdict> verdict_;
  bool runtime_died_ = false;  // then the verdict waits for its status
  bool outcome_sent_ = false;
  bool is_ending_ = false;  // its processes are
  bool is_done_ = false;
  bool is_broken_ = false;
  SteadyTime deadline_{};
  std::chrono::nanoseconds time_left_{};  // until the deadline, while it waits for a lease
  std::optional<EventLoop::TimerId> deadline_timer_;

  RunLeases leases_;
  std::optional<Uuid> device_holder_;  // the last one since the lease was given back
  std::optional<EventLoop::TimerId> memory_timer_;
  int looks_above_ = 0;  // at its memory, in a row, that found too much
  std::optional<EventLoop::TimerId> recycle_timer_;
  std::optional<EventLoop::TimerId> kill_timer_;
  std::optional<EventLoop::TimerId> closed_timer_;
};

}  // namespace kcoral::executor
