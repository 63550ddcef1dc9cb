#include "executor/supervisor/program_run.h"

#include <algorithm>
#include <csignal>
#include <tuple>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "executor/frame_fields.h"
#include "executor/supervisor/process_memory.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using schema::InstructionErrorKind;
using schema::Outcome;

// A process closes its descriptors just before it ends; what closes its socket and lives on for longer than this is a
// program that closed what is not its own.
constexpr auto kClosedWait = std::chrono::seconds(2);

// Between two looks at a program's memory; longer where looking takes long, so that it takes a tenth of the time at
// most.
constexpr auto kMemoryPause = std::chrono::milliseconds(100);
constexpr int kMemoryPauseFactor = 10;
// Processes come and go while they are looked at, and what they share may be counted twice: so often in a row it must
// be too much, the looks closer together.
constexpr int kMemoryLooksAbove = 3;
constexpr auto kMemoryPauseAbove = std::chrono::milliseconds(15);

/// The bounds that were applied at admission are the server's; here every program that got that far is accepted.
schema::ProgramBounds any_bounds() {
  schema::ProgramBounds bounds;
  bounds.timeout_seconds_max = 1e9;
  bounds.output_limit_bytes_max = uint64_t{1} << 40;
  bounds.gpu_count_max = limits::kGpuCountMax;
  return bounds;
}

// What the runtime ends with when it cannot even say what went wrong (executor/runtime/runtime.py).
constexpr int kRuntimeFailedCode = 70;

std::string describe_death(const ExitStatus& status) {
  if (!status.by_signal && status.number == kRuntimeFailedCode) {
    return "the runtime could not go on in the program's process (exit code 70): a program that takes away its "
           "descriptors, its socket or its file size ends like this";
  }
  if (!status.by_signal) return fmt::format("the program ended its process with {}", describe(status));
  std::string message = fmt::format("the program's process was killed by {}", describe(status));
  if (status.number == SIGXCPU) message += ": it used all of its CPU time";
  if (status.number == SIGXFSZ) message += ": a file reached the largest size allowed";
  if (status.number == SIGKILL) message += ", by itself or because the machine's memory ran out";
  return message;
}

}  // namespace

Result<std::unique_ptr<ProgramRun>> ProgramRun::start(EventLoop& loop, DeviceLeases& leases,
                                                      std::unique_ptr<Runtime> runtime, RunRequest request,
                                                      Handlers handlers) {
  auto text = request.program->view();
  if (!text) return fail(text.error());
  auto program = schema::parse_program(*text, any_bounds());
  if (!program)
    return fail(ErrorKind::kEngine, "a program that was admitted is malformed: {}", program.error().message);
  std::unique_ptr<ProgramRun> run(
      new ProgramRun(loop, leases, std::move(runtime), std::move(request), std::move(*program), std::move(handlers)));
  run->begin();
  return run;
}

ProgramRun::ProgramRun(EventLoop& loop, DeviceLeases& leases, std::unique_ptr<Runtime> runtime, RunRequest request,
                       schema::Program program, Handlers handlers)
    : loop_(loop),
      runtime_(std::move(runtime)),
      request_(std::move(request)),
      program_(std::move(program)),
      handlers_(std::move(handlers)),
      assigned_at_(loop.clock().now()),
      records_(loop, request_.run, [this](const nlohmann::json& frame) { handlers_.send(frame, {}); }),
      conversation_(program_, loop.clock(), [this](const nlohmann::ordered_json& record) { records_.add(record); }),
      leases_(loop, leases, request_.lease_terms,
              {[this](const nlohmann::ordered_json& record) { records_.add(record); }, [this] { on_lease_granted(); },
               [this](std::string why) { on_lease_withheld(std::move(why)); }}) {}

ProgramRun::~ProgramRun() {
  for (const auto* timer : {&deadline_timer_, &memory_timer_, &recycle_timer_, &kill_timer_, &closed_timer_}) {
    if (*timer) loop_.cancel(**timer);
  }
}

void ProgramRun::begin() {
  runtime_->set_events(*this);
  capture_output(OutputStream::kStdout, runtime_->out());
  capture_output(OutputStream::kStderr, runtime_->err());
  start_deadline(request_.timeout);
  const size_t gpus = request_.lease_terms.slot_devices.size();
  if (request_.lease_terms.count > gpus) {  // it was admitted by a server that had more
    return fail_run(InstructionErrorKind::kUnavailable,
                    fmt::format("the program needs {} GPUs, and this server has {}", request_.lease_terms.count, gpus));
  }
  if (runtime_->is_ready()) on_runtime_ready();
}

// --- what it prints ---

void ProgramRun::capture_output(OutputStream stream, OutputCapture& capture) {
  OutputCapture::Handlers handlers;
  handlers.begun = [this, stream, &capture] { show_output(stream, capture); };
  handlers.truncated = [this, stream] { records_.add({{"event", "output_truncated"}, {"stream", name_of(stream)}}); };
  handlers.failed = [this](const Error& reason) { on_output_failed(reason); };
  capture.start(request_.output_limit_bytes, std::move(handlers));
}

void ProgramRun::show_output(OutputStream stream, const OutputCapture& capture) {
  if (outcome_sent_) return;  // which is about to say it all
  auto memory = capture.open_for_reading();
  if (!memory) return on_output_failed(memory.error());
  std::vector<OutgoingFd> fds;
  fds.emplace_back(std::move(*memory));
  handlers_.send(output_frame(request_.run, stream), std::move(fds));
}

/// Without its output there is no outcome to make.
void ProgramRun::on_output_failed(const Error& reason) {
  break_off("a program's output could not be kept: " + reason.message);
}

Status ProgramRun::take_output(Outcome& outcome) {
  for (const auto& [capture, bytes, is_truncated] :
       {std::tuple{&runtime_->out(), &outcome.stdout_bytes, &outcome.stdout_truncated},
        std::tuple{&runtime_->err(), &outcome.stderr_bytes, &outcome.stderr_truncated}}) {
    capture->read_what_is_there();
    auto kept = capture->bytes();
    if (!kept) return fail(kept.error());
    *bytes = std::move(*kept);
    *is_truncated = capture->is_truncated();
    capture->stop();
  }
  return {};
}

// --- what the server says ---

Status ProgramRun::add_blobs(Frame frame) {
  auto digests = strings_field(frame.body, "sha256");
  if (!digests) return fail(digests.error());
  if (digests->size() != frame.fds.size() || frame.fds.size() > request_.blob_count - blobs_received_) {
    return fail(ErrorKind::kEngine, "{} blobs with {} descriptors, {} expected", digests->size(), frame.fds.size(),
                request_.blob_count - blobs_received_);
  }
  blobs_received_ += frame.fds.size();
  waiting_blobs_.push_back(std::move(frame));
  if (program_sent_) forward_blobs();
  return {};
}

void ProgramRun::forward_blobs() {
  for (Frame& frame : std::exchange(waiting_blobs_, {})) {
    std::vector<OutgoingFd> fds;
    for (UniqueFd& fd : frame.fds) fds.emplace_back(std::move(fd));
    runtime_->send({{"type", "blobs"}, {"sha256", frame.body["sha256"]}}, std::move(fds));
  }
}

// --- what the runtime says ---

void ProgramRun::on_runtime_ready() {
  if (is_recycling()) {
    stop(recycle_timer_);
    leases_.end(/*processes_ended=*/false);
    records_.flush();
    is_done_ = true;
    return handlers_.on_done(Aftermath::kKept);
  }
  if (is_decided()) return;
  program_sent_ = true;
  runtime_->send({{"type", "program"},
                  {"blobs", request_.blob_count},
                  {"needs_lease", request_.lease_terms.count > 0},
                  {"keep", request_.keep_runtime}},
                 {request_.program});
  forward_blobs();
  nlohmann::json running = frame_about(request_.run, "running");
  running["pid"] = runtime_->host_pid();
  handlers_.send(running, {});
  failpoint("executor.run.started");
  if (request_.memory_bytes_max > 0) look_at_memory_after(kMemoryPause);
}

void ProgramRun::on_runtime_failed(const Error& error) {
  if (is_recycling()) return give_up_recycling(error);
  const bool environment = error.kind == ErrorKind::kEnvironment;
  fail_run(environment ? InstructionErrorKind::kUnavailable : InstructionErrorKind::kEngine, error.message);
}

void ProgramRun::on_runtime_frame(Frame frame) {
  // After the answer: nothing of the program runs on the device any more. A process that is ended keeps it until then.
  if (is_recycling() && frame.type() == "lease_release") return leases_.end(/*processes_ended=*/false);
  if (is_decided()) return;
  auto meaning = conversation_.take(std::move(frame));
  if (!meaning) return on_runtime_failed(meaning.error());
  switch (*meaning) {
    case RuntimeConversation::Meaning::kProgress:
      return;
    case RuntimeConversation::Meaning::kLeaseRequest:
      return ask_for_lease();
    case RuntimeConversation::Meaning::kLeaseRelease:
      return give_lease_back();
    case RuntimeConversation::Meaning::kOver:
      return answer();
  }
}

void ProgramRun::on_runtime_closed(std::optional<Error> error) {
  if (is_recycling()) return give_up_recycling(error ? *error : Error{ErrorKind::kEngine, "it closed its socket"});
  if (is_decided()) return;
  if (error) return fail_run(InstructionErrorKind::kEngine, "the runtime sent what is no frame: " + error->message);
  closed_timer_ = loop_.run_after(kClosedWait, [this] {
    closed_timer_.reset();
    if (!is_decided()) {
      fail_run(InstructionErrorKind::kRuntime,
               "the program closed the connection between its process and the executor");
    }
  });
}

void ProgramRun::on_runtime_ended() {
  if (is_recycling()) return give_up_recycling({ErrorKind::kEngine, "its process ended"});
  if (outcome_sent_) return end_processes();  // its context has ended with it: there is no turn to wait for
  // What it said before it ended counts: a program may end its process right after its last instruction.
  if (is_decided() || answered_meanwhile()) return;
  runtime_died_ = true;
  end_processes();
}

bool ProgramRun::answered_meanwhile() {
  runtime_->receive_all();
  return is_decided();
}

// --- the lease ---

void ProgramRun::ask_for_lease() {
  if (request_.lease_terms.count == 0) {
    return fail_run(InstructionErrorKind::kEngine, "the runtime asked for a lease, and there is nothing to lease");
  }
  if (leases_.is_asked()) {
    return fail_run(InstructionErrorKind::kEngine, "the runtime asked for a lease that it has");
  }
  // A runtime reads a grant before it asks for the next lease; one that does not read would fill our memory.
  if (runtime_->queued_frames() > limits::kFramesQueuedMax) {
    return fail_run(InstructionErrorKind::kEngine, "the runtime does not read what it asks for");
  }
  records_.add({{"event", "lease_requested"}, {"index", conversation_.current()}});
  time_left_ = deadline_ - loop_.clock().now();
  stop(deadline_timer_);
  leases_.ask();
}

void ProgramRun::on_lease_granted() {
  runtime_->note_lease();
  device_holder_.reset();
  start_deadline(time_left_);
  runtime_->send({{"type", "lease_granted"}, {"devices", leases_.visible_devices()}});
}

void ProgramRun::on_lease_withheld(std::string why) {
  if (is_decided() || answered_meanwhile()) return;
  fail_run(InstructionErrorKind::kUnavailable, std::move(why));
}

void ProgramRun::give_lease_back() {
  if (!leases_.is_held()) {
    return fail_run(InstructionErrorKind::kEngine, "the runtime gave a lease back that it does not have");
  }
  leases_.end(/*processes_ended=*/false);
}

Status ProgramRun::note_device_holder(const Frame& frame) {
  auto holder = uuid_field(frame.body, "holder");
  if (!holder) return fail(holder.error());
  device_holder_ = *holder;
  return {};
}

void ProgramRun::stop(std::optional<EventLoop::TimerId>& timer) {
  if (timer) loop_.cancel(*std::exchange(timer, std::nullopt));
}

// --- how it ends ---

void ProgramRun::start_deadline(std::chrono::nanoseconds left) {
  deadline_ = loop_.clock().now() + std::chrono::duration_cast<SteadyTime::duration>(left);
  deadline_timer_ = loop_.run_at(deadline_, [this] { on_deadline(); });
}

void ProgramRun::on_deadline() {
  deadline_timer_.reset();
  if (is_decided() || answered_meanwhile()) return;
  records_.add({{"event", "deadline_passed"}, {"index", conversation_.current()}});
  decide({Outcome::Ending::kTimedOut, std::nullopt,
          fmt::format("the deadline of {:g} s passed {}", std::chrono::duration<double>(request_.timeout).count(),
                      place())});
}

void ProgramRun::look_at_memory_after(std::chrono::nanoseconds pause) {
  memory_timer_ = loop_.run_after(pause, [this] {
    memory_timer_.reset();
    look_at_memory();
  });
}

void ProgramRun::look_at_memory() {
  const SteadyTime begin = loop_.clock().now();
  const uint64_t bytes = memory_of(runtime_->host_pids(), request_.memory_bytes_max);
  if (bytes > request_.memory_bytes_max && ++looks_above_ < kMemoryLooksAbove) {
    return look_at_memory_after(kMemoryPauseAbove);
  }
  if (bytes <= request_.memory_bytes_max) {
    looks_above_ = 0;
    const auto taken = loop_.clock().now() - begin;
    return look_at_memory_after(std::max<std::chrono::nanoseconds>(kMemoryPause, taken * kMemoryPauseFactor));
  }
  if (outcome_sent_) return end_processes();
  if (answered_meanwhile()) return;
  fail_run(InstructionErrorKind::kRuntime,
           fmt::format("the program was ended: its processes held {} bytes of memory, and one program may hold {}",
                       bytes, request_.memory_bytes_max));
}

void ProgramRun::cancel() {
  if (is_decided() || answered_meanwhile()) return;
  decide({Outcome::Ending::kCancelled, std::nullopt, fmt::format("cancelled {}", place())});
}

std::string ProgramRun::place() const {
  if (conversation_.is_instruction_running()) return "in " + describe(program_, conversation_.current());
  return "before " + describe(program_, conversation_.current());
}

void ProgramRun::fail_run(InstructionErrorKind kind, std::string message) {
  decide({Outcome::Ending::kFailed, conversation_.error_here(kind, std::move(message)), {}});
}

void ProgramRun::answer() {
  Verdict verdict;
  verdict.error = conversation_.error();
  if (verdict.error && verdict.error->gpu_access && device_holder_) {
    verdict.error->gpu_access->interfered_request_id = device_holder_->str();
  }
  verdict.ending = verdict.error ? Outcome::Ending::kFailed : Outcome::Ending::kCompleted;
  verdict_ = std::move(verdict);
  // Complete at this moment: whatever the program left running neither delays nor changes it.
  if (!send_outcome()) return;
  if (!request_.keep_runtime || !runtime_->is_usable()) return end_processes_in_turn();
  recycle();
}

void ProgramRun::recycle() {
  stop(memory_timer_);
  recycle_timer_ = loop_.run_after(limits::kRecycleWait, [this] {
    give_up_recycling({ErrorKind::kEngine, "it was not ready for another program in time"});
  });
  runtime_->recycle();
}

void ProgramRun::give_up_recycling(const Error& reason) {
  stop(recycle_timer_);
  // A conflict is ordinary: what a program leaves behind is its own affair.
  const auto level = reason.kind == ErrorKind::kConflict ? spdlog::level::debug : spdlog::level::warn;
  spdlog::log(level, "the runtime of request {} is not used again: {}", request_.run.request_id.str(), reason.message);
  end_processes_in_turn();
}

void ProgramRun::decide(Verdict verdict) {
  if (is_decided()) return;
  verdict_ = std::move(verdict);
  end_processes();
}

void ProgramRun::end_processes_in_turn() {
  if (leases_.is_asked() || !runtime_->has_context() || runtime_->has_ended()) return end_processes();
  if (request_.memory_bytes_max > 0 && !memory_timer_) look_at_memory_after(kMemoryPause);
  leases_.ask_to_end_context([this](bool is_ours) {
    if (!is_ours) {
      spdlog::warn("the processes of request {} end beside whoever has their device: it was not theirs within {} s",
                   request_.run.request_id.str(), limits::kContextEndWait.count());
    }
    end_processes();
  });
}

void ProgramRun::end_processes() {
  if (std::exchange(is_ending_, true)) return;
  stop(memory_timer_);
  leases_.stop_waiting();
  kill_timer_ = loop_.run_after(limits::kKillWait, [this] { on_kill_wait_over(); });
  runtime_->end();
}

void ProgramRun::on_runtime_gone() {
  if (std::exchange(is_done_, true)) return;
  stop(kill_timer_);
  leases_.end(/*processes_ended=*/true);
  if (!verdict_) verdict_ = verdict_on_death();
  if (!outcome_sent_ && !send_outcome()) return;
  if (const auto& status = runtime_->status()) {
    records_.add({{"event", "process_exited"}, {status->by_signal ? "signal" : "code", status->number}});
  }
  records_.flush();
  handlers_.on_done(Aftermath::kClean);
}

void ProgramRun::on_kill_wait_over() {
  kill_timer_.reset();
  if (is_done_) return;
  const std::string request = "request " + request_.run.request_id.str();
  const bool is_alive = runtime_->is_alive();
  if (!outcome_sent_) {
    if (!verdict_) verdict_ = verdict_on_death();
    std::string& message = verdict_->error ? verdict_->error->message : verdict_->message;
    message += fmt::format("; its processes could not be ended within {} s, and the {}", limits::kKillWait.count(),
                           is_alive ? what_is_quarantined() : "slot is replaced");
    if (!send_outcome()) return;
  }
  if (!is_alive) return break_off("the zygote does not tell how the processes of " + request + " ended");
  nlohmann::json quarantined = frame_about(request_.run, "quarantined");
  quarantined["message"] = fmt::format("processes of {} could not be ended within {} s, and the {}", request,
                                       limits::kKillWait.count(), what_is_quarantined());
  handlers_.send(quarantined, {});
}

std::string ProgramRun::what_is_quarantined() const {
  if (!leases_.is_held()) return "slot is quarantined";
  return leases_.devices_held() == 1 ? "slot and its device are quarantined" : "slot and its devices are quarantined";
}

ProgramRun::Verdict ProgramRun::verdict_on_death() const {
  if (!conversation_.has_started()) {
    return {
        Outcome::Ending::kFailed,
        conversation_.error_here(InstructionErrorKind::kEngine,
                                 fmt::format("the runtime ended before the first instruction ({})",
                                             runtime_->status() ? describe(*runtime_->status()) : "status unknown")),
        {}};
  }
  const std::string message = runtime_->status() ? describe_death(*runtime_->status()) : "the program's process ended";
  return {Outcome::Ending::kFailed, conversation_.error_here(InstructionErrorKind::kRuntime, message), {}};
}

bool ProgramRun::send_outcome() {
  outcome_sent_ = true;
  stop(deadline_timer_);
  leases_.stop_waiting();
  auto frames = encode_outcome();
  records_.flush();
  if (!frames) {
    break_off("a program's outcome could not be passed on: " + frames.error().message);
    return false;
  }
  failpoint("executor.outcome.made");
  for (EncodedFrame& frame : *frames) {
    if (&frame != &frames->front()) failpoint("executor.outcome.half_sent");
    handlers_.send(frame.body, std::move(frame.fds));
  }
  failpoint("executor.outcome.sent");
  return true;
}

void ProgramRun::break_off(std::string reason) {
  is_done_ = true;
  if (!std::exchange(is_broken_, true)) handlers_.on_broken(std::move(reason));
}

Result<std::vector<EncodedFrame>> ProgramRun::encode_outcome() {
  Outcome outcome;
  if (auto taken = take_output(outcome); !taken) return fail(taken.error());
  outcome.ending = verdict_->ending;
  outcome.error = verdict_->error;
  outcome.message = verdict_->message;
  std::string summary = "[]";
  if (outcome.ending == Outcome::Ending::kCompleted || outcome.ending == Outcome::Ending::kFailed) {
    summary = conversation_.results_summary();
    outcome.returns = conversation_.take_returns();
    outcome.parts = conversation_.take_parts();
  }
  outcome.elapsed_ms = to_ms(loop_.clock().now() - assigned_at_);
  outcome.lease_wait_ms = to_ms(leases_.waited());
  outcome.lease_held_ms = to_ms(leases_.held());
  outcome.gpu_count = request_.lease_terms.count;
  outcome.gpu_ids = leases_.devices();
  auto report = make_report(outcome, std::move(summary));
  if (!report) return fail(report.error());
  return encode_report(request_.run, *report);
}

}  // namespace kcoral::executor
