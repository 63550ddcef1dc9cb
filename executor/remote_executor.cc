#include "executor/remote_executor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "executor/frame_fields.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

constexpr std::chrono::milliseconds kPauseMin{100};
constexpr std::chrono::milliseconds kPauseMax{10'000};
// Beyond a run's deadline and the time to end it: for an executor that is alive but says nothing (stopped, or stuck).
constexpr std::chrono::seconds kSilenceMax{30};
// Whatever an executor does besides a run waits for a context or a lease at most, and then for the end of processes.
constexpr auto kRestMax = std::max(limits::kContextWait, limits::kContextEndWait) + limits::kKillWait + kSilenceMax;
// From the closing of its socket to the end of an executor; then it is killed.
constexpr std::chrono::seconds kEndWait{2};
// `sha256` takes 67 bytes each, far below a frame's size.
constexpr size_t kBlobsPerFrame = limits::kFrameFdsMax;

}  // namespace

RemoteExecutor::RemoteExecutor(EventLoop& loop, ExecutorConfig config)
    : loop_(loop), config_(std::move(config)), pause_(kPauseMin) {}

RemoteExecutor::~RemoteExecutor() {
  if (restart_timer_) loop_.cancel(*restart_timer_);
  stop_watching_over_run();
  stop_watching_over_rest();
  // Closing its socket lets an executor end in order, with its slot.
  channel_.reset();
  if (process_) process_->wait_for(kEndWait);
  kill_process();
}

void RemoteExecutor::start(ExecutorEvents& events) {
  KCORAL_CHECK(events_ == nullptr);
  events_ = &events;
  launch();
}

void RemoteExecutor::launch() {
  if (auto launched = try_launch(); !launched) {
    kill_process();  // so that this is the only word about it
    // Not from within `start`, whose caller does not expect events yet.
    loop_.post([this, alive = std::weak_ptr<const bool>(alive_), reason = launched.error().message] {
      if (!alive.expired()) lose(reason, /*permanent=*/false);
    });
  }
}

Status RemoteExecutor::try_launch() {
  auto sockets = make_frame_sockets();
  if (!sockets) return fail(sockets.error());
  ProcessSpec spec;
  spec.arguments = {config_.executor_path, config_.name, config_.log_level};
  spec.fds = {{kServerFd, sockets->theirs.get()}};
  spec.own_session = true;
  auto process = ChildProcess::start(spec);
  if (!process) return fail(process.error());
  process_.emplace(std::move(*process));
  if (auto watched = loop_.watch(process_->pidfd(), EPOLLIN, [this](uint32_t) { on_process_ended(); }); !watched) {
    return watched;
  }
  auto channel =
      FrameChannel::create(loop_, std::move(sockets->ours),
                           {[this](Frame frame) { on_frame(std::move(frame)); },
                            [this](std::optional<Error> error) {
                              // Without an error it is ending, and how it ended follows.
                              if (error)
                                lose("the executor sent what is no frame: " + error->message, /*permanent=*/false);
                            }});
  if (!channel) return fail(channel.error());
  channel_ = std::move(*channel);
  return send_configure();
}

Status RemoteExecutor::send_configure() {
  const nlohmann::json body{{"type", "configure"},
                            {"slot", config_.name},
                            {"lock_path", config_.lock_path},
                            {"python", config_.python},
                            {"preload", config_.preload},
                            {"standby", config_.standby},
                            {"runs_per_runtime", config_.runs_per_runtime},
                            {"memory_bytes_max", config_.memory_bytes_max},
                            {"uid", config_.uid},
                            {"gid", config_.gid},
                            {"environment", config_.environment},
                            {"read_only_paths", config_.read_only_paths},
                            {"hidden_paths", config_.hidden_paths},
                            {"devices", config_.devices},
                            {"device_nodes", config_.device_nodes},
                            {"lease_wait_ms_max", config_.lease_wait_max.count()},
                            {"limits", to_json(config_.limits)}};
  // An environment or list of paths may be long.
  if (auto packet = render_frame(body); !packet) return fail(packet.error());
  channel_->send(body);
  return {};
}

void RemoteExecutor::run(Assignment assignment) {
  KCORAL_CHECK(is_idle_);
  is_idle_ = false;
  run_ = RunId{assignment.request_id, assignment.attempt};
  is_outcome_due_ = true;
  nlohmann::json body = frame_about(*run_, "run");
  body["timeout_ms"] = assignment.timeout.count();
  body["output_limit_bytes"] = assignment.output_limit_bytes;
  body["gpu_count"] = assignment.gpu_count;
  body["priority"] = assignment.priority;
  body["blobs"] = assignment.blobs.size();
  channel_->send(body, {assignment.program});
  const auto& blobs = assignment.blobs;
  for (size_t first = 0; first < blobs.size(); first += kBlobsPerFrame) {
    nlohmann::json digests = nlohmann::json::array();
    std::vector<OutgoingFd> fds;
    for (size_t i = first; i < std::min(first + kBlobsPerFrame, blobs.size()); ++i) {
      digests.push_back(blobs[i].first.hex());
      fds.emplace_back(blobs[i].second);
    }
    nlohmann::json part = frame_about(*run_, "blobs");
    part["sha256"] = std::move(digests);
    channel_->send(part, std::move(fds));
  }
  run_timeout_ = assignment.timeout;
  watch_over_run(run_timeout_);
  watch_over_rest();
}

void RemoteExecutor::grant_lease(uint64_t id, const std::vector<int>& devices) {
  const auto lease = leases_.find(id);
  KCORAL_CHECK(lease != leases_.end());
  channel_->send({{"type", "lease_granted"}, {"lease", id}, {"devices", devices}});
  lease->second.is_granted = true;
  if (lease->second.for_program && is_outcome_due_) watch_over_run(run_timeout_);
  watch_over_rest();
}

void RemoteExecutor::deny_lease(uint64_t id, const std::string& message) {
  const auto lease = leases_.find(id);
  KCORAL_CHECK(lease != leases_.end() && lease->second.for_program && !lease->second.is_granted);
  channel_->send(
      {{"type", "lease_denied"}, {"lease", id}, {"message", message.substr(0, limits::kFrameMessageBytesMax)}});
  // Nothing is left to do but to end the program.
  if (is_outcome_due_) watch_over_run(std::chrono::milliseconds(0));
}

void RemoteExecutor::tell_device_holder(const Uuid& request_id) {
  if (!is_outcome_due_) return;
  nlohmann::json body = frame_about(*run_, "device_holder");
  body["holder"] = request_id.str();
  channel_->send(body);
}

void RemoteExecutor::cancel(const Uuid& request_id) {
  if (!is_outcome_due_ || run_->request_id != request_id) return;
  channel_->send(frame_about(*run_, "cancel"));
  // Nothing is left to do but to end the program, whether it waits for a lease or not.
  run_timeout_ = std::chrono::milliseconds(0);
  watch_over_run(run_timeout_);
}

/// The executor keeps the deadline; this is for an executor that cannot. While a program waits for a lease its time
/// stands still, so this begins anew with each grant, and with the denial that ends it.
void RemoteExecutor::watch_over_run(std::chrono::milliseconds timeout) {
  stop_watching_over_run();
  run_timer_ = loop_.run_after(timeout + limits::kKillWait + kSilenceMax, [this] {
    run_timer_.reset();
    lose("the executor did not answer in time", /*permanent=*/false);
  });
}

void RemoteExecutor::stop_watching_over_run() {
  if (run_timer_) loop_.cancel(*run_timer_);
  run_timer_.reset();
}

/// For one that stops while no run is watched: while it holds a device, or ends what a program left. Begins anew with
/// whatever happens. Processes that cannot be ended are shown as such, and may take their time.
void RemoteExecutor::watch_over_rest() {
  stop_watching_over_rest();
  const bool has_device =
      std::any_of(leases_.begin(), leases_.end(), [](const auto& lease) { return lease.second.is_granted; });
  const bool is_ending_run = run_ && !is_outcome_due_;
  if (run_timer_ || is_quarantined_ || !(has_device || is_ending_run)) return;
  rest_timer_ = loop_.run_after(kRestMax, [this, has_device] {
    rest_timer_.reset();
    lose(has_device ? "the executor did not give its device back in time" : "the executor did not end a run in time",
         /*permanent=*/false);
  });
}

void RemoteExecutor::stop_watching_over_rest() {
  if (rest_timer_) loop_.cancel(*rest_timer_);
  rest_timer_.reset();
}

void RemoteExecutor::on_frame(Frame frame) {
  const std::string type = frame.type();
  const std::weak_ptr<const bool> alive = alive_;
  const auto taken = take_frame(std::move(frame));
  if (!taken && !alive.expired()) {
    lose(fmt::format("the executor sent a malformed \"{}\": {}", type, taken.error().message), /*permanent=*/false);
  }
}

Status RemoteExecutor::take_frame(Frame frame) {
  const std::string type = frame.type();
  if (type == "idle") return take_idle(frame);
  if (type == "lease_request") return take_lease_request(frame);
  if (type == "lease_end") return take_lease_end(frame);
  if (type == "broken") return take_broken(frame);
  return take_frame_about_run(type, std::move(frame));
}

Status RemoteExecutor::take_frame_about_run(const std::string& type, Frame frame) {
  auto run = run_id_from(frame.body);
  if (!run) return fail(run.error());
  if (run_ != *run) return fail(ErrorKind::kEngine, "it is about a run that the executor does not have");
  if (type == "records") return take_records(frame);
  if (type == "quarantined") return take_quarantined(frame);
  if (!is_outcome_due_) return fail(ErrorKind::kEngine, "it comes after the outcome");
  if (type == "running") return take_running(frame);
  if (type == "output") return take_output(std::move(frame));
  if (type == "outcome_data") return report_.on_outcome_data(std::move(frame));
  if (type == "outcome") return take_outcome(std::move(frame));
  return fail(ErrorKind::kEngine, "there is no such type");
}

Status RemoteExecutor::take_idle(const Frame& frame) {
  auto python = string_field(frame.body, "python");
  if (!python) return fail(python.error());
  auto versions = string_map_field(frame.body, "versions");
  if (!versions) return fail(versions.error());
  if (is_outcome_due_ || is_idle_) return fail(ErrorKind::kEngine, "it comes out of order");
  is_idle_ = was_ever_idle_ = true;
  is_quarantined_ = false;
  run_.reset();
  watch_over_rest();
  events_->on_idle({std::move(*python), std::move(*versions)});
  return {};
}

Status RemoteExecutor::take_running(const Frame& frame) {
  auto pid = unsigned_field(frame.body, "pid", std::numeric_limits<pid_t>::max());
  if (!pid) return fail(pid.error());
  events_->on_running(static_cast<int>(*pid));
  return {};
}

Status RemoteExecutor::take_records(const Frame& frame) {
  const auto list = frame.body.find("records");
  if (list == frame.body.end() || !list->is_array()) return fail(ErrorKind::kEngine, "\"records\" is no array");
  std::vector<RunRecord> records;
  for (const auto& entry : *list) {
    auto at_us = unsigned_field(entry, "at_us", std::numeric_limits<int64_t>::max());
    if (!at_us) return fail(at_us.error());
    auto members = string_field(entry, "members");
    if (!members) return fail(members.error());
    records.push_back({WallTime(std::chrono::microseconds(static_cast<int64_t>(*at_us))), std::move(*members)});
  }
  events_->on_records(std::move(records));
  return {};
}

Status RemoteExecutor::take_output(Frame frame) {
  auto stream = output_stream_from(frame.body);
  if (!stream) return fail(stream.error());
  if (frame.fds.size() != 1) return fail(ErrorKind::kEngine, "output with {} descriptors", frame.fds.size());
  events_->on_output(*stream, std::make_shared<const UniqueFd>(std::move(frame.fds[0])));
  return {};
}

Status RemoteExecutor::take_outcome(Frame frame) {
  auto report = report_.on_outcome(std::move(frame));
  if (!report) return fail(report.error());
  stop_watching_over_run();
  is_outcome_due_ = false;
  watch_over_rest();
  pause_ = kPauseMin;
  events_->on_outcome(std::move(*report));
  return {};
}

Status RemoteExecutor::take_lease_request(const Frame& frame) {
  auto ask = lease_ask_from(frame.body, config_.devices);
  if (!ask) return fail(ask.error());
  if (!leases_.emplace(ask->id, Lease{ask->for_program()}).second) {
    return fail(ErrorKind::kEngine, "lease {} was asked for before", ask->id);
  }
  if (ask->for_program()) stop_watching_over_run();
  watch_over_rest();
  events_->on_lease_asked(*ask);
  return {};
}

Status RemoteExecutor::take_lease_end(const Frame& frame) {
  auto id = unsigned_field(frame.body, "lease");
  if (!id) return fail(id.error());
  auto processes_ended = boolean_field(frame.body, "processes_ended");
  if (!processes_ended) return fail(processes_ended.error());
  const auto lease = leases_.find(*id);
  if (lease == leases_.end()) return fail(ErrorKind::kEngine, "there is no lease {}", *id);
  const bool was_programs = lease->second.for_program;
  leases_.erase(lease);
  if (was_programs && is_outcome_due_ && !run_timer_) watch_over_run(run_timeout_);
  watch_over_rest();
  events_->on_lease_ended(*id, *processes_ended);
  return {};
}

Status RemoteExecutor::take_broken(const Frame& frame) {
  auto message = string_field(frame.body, "message");
  if (!message) return fail(message.error());
  auto permanent = boolean_field(frame.body, "permanent");
  if (!permanent) return fail(permanent.error());
  lose(*message, *permanent);
  return {};
}

Status RemoteExecutor::take_quarantined(const Frame& frame) {
  auto message = string_field(frame.body, "message");
  if (!message) return fail(message.error());
  if (is_outcome_due_) return fail(ErrorKind::kEngine, "it comes before the outcome");
  is_quarantined_ = true;
  stop_watching_over_rest();
  events_->on_quarantined(std::move(*message));
  return {};
}

void RemoteExecutor::on_process_ended() {
  const auto status = process_->try_wait();
  if (!status) return;
  // What it said last may still stand in the socket: an outcome counts, and `broken` says more than an exit status.
  if (channel_ && !channel_->receive_all()) return;
  lose(fmt::format("the executor process ended ({})", describe(*status)), /*permanent=*/false);
}

void RemoteExecutor::lose(const std::string& reason, bool permanent) {
  KCORAL_CHECK(!restart_timer_);  // once for each start
  stop_watching_over_run();
  stop_watching_over_rest();
  kill_process();
  is_idle_ = is_quarantined_ = false;
  run_.reset();
  is_outcome_due_ = false;
  leases_.clear();
  report_ = {};
  // Where it could run once, what is wrong may pass.
  if (was_ever_idle_) permanent = false;
  if (!was_ever_idle_ && ++failed_starts_ >= limits::kStartsBeforeReadyMax) permanent = true;
  if (permanent) {
    spdlog::error("{}: {}; it is not started again", config_.name, reason);
  } else {
    spdlog::warn("{}: {}; starting it again in {} ms", config_.name, reason, pause_.count());
    restart_timer_ = loop_.run_after(pause_, [this] {
      restart_timer_.reset();
      launch();
    });
    pause_ = std::min(pause_ * 2, kPauseMax);
  }
  events_->on_lost(reason, permanent);
}

/// What it started dies with it.
void RemoteExecutor::kill_process() {
  channel_.reset();
  if (!process_) return;
  loop_.unwatch(process_->pidfd());
  process_.reset();
}

}  // namespace kcoral::executor
