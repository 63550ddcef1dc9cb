#include "executor/supervisor/slot.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/log.h"
#include "executor/frame_fields.h"
#include "executor/sandbox/seccomp_filter.h"
#include "executor/shortage.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using nlohmann::json;

// Descriptors of the zygote (docs/frames.md); bubblewrap's own inputs come after them.
constexpr int kControlFd = 3;
constexpr int kConfigFd = 4;
constexpr int kFilterFd = 5;
constexpr int kFirstInputFd = 10;

// Between the zygote's end and bubblewrap's, which passes on the status: no longer than it takes to end a namespace.
constexpr auto kEndWait = std::chrono::seconds(5);

// From the closing of our socket to the end of everything in the slot: less than the server waits for an executor.
constexpr auto kOwnEndWait = std::chrono::milliseconds(1500);

Result<std::shared_ptr<const SealedMemory>> make_zygote_config(const SlotConfig& config) {
  const json document{{"preload", config.preload},
                      {"limits", to_json(config.limits)},
                      {"seccomp_filter_fd", kFilterFd},
                      {"reuse", config.reuse},
                      {"memory_bytes_max", config.memory_bytes_max},
                      // One device is every program's; of several, each lease says which.
                      {"visible_devices", config.devices.size() == 1 ? "0" : ""},
                      {"environment", slot_environment(config.sandbox)}};
  return SealedMemory::copy_of(document.dump());
}

std::string without_trailing_space(const std::string& text) {
  const size_t end = text.find_last_not_of(" \n\r\t");
  return end == std::string::npos ? "" : text.substr(0, end + 1);
}

Result<ProcessEnd> process_end_from(const json& body) {
  auto process = string_field(body, "process");
  if (!process) return fail(process.error());
  if (*process != "runtime" && *process != "init") return fail(ErrorKind::kEngine, "no such process");
  ProcessEnd end;
  end.process = *process == "runtime" ? ProcessEnd::Process::kRuntime : ProcessEnd::Process::kInit;
  end.status.by_signal = body.contains("signal");
  auto number = unsigned_field(body, end.status.by_signal ? "signal" : "code", 255);
  if (!number) return fail(number.error());
  end.status.number = static_cast<int>(*number);
  return end;
}

}  // namespace

Result<std::unique_ptr<Slot>> Slot::start(EventLoop& loop, const SlotConfig& config, Handlers handlers) {
  std::unique_ptr<Slot> slot(new Slot(loop, std::move(handlers)));
  if (auto launched = slot->launch(config); !launched) return fail(launched.error());
  return slot;
}

Status Slot::launch(const SlotConfig& config) {
  const std::vector<std::string> zygote{config.sandbox.python, "-B", "-s",
                                        std::string(kPythonDirectoryInside) + "/zygote.py"};
  auto command = make_slot_command(config.sandbox, zygote, kFirstInputFd);
  if (!command) return fail(command.error());
  auto zygote_config = make_zygote_config(config);
  if (!zygote_config) return fail(zygote_config.error());
  auto filter = make_program_filter();
  if (!filter) return fail(filter.error());
  auto sockets = make_frame_sockets();
  if (!sockets) return fail(sockets.error());
  std::array<int, 2> pipe;
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail_errno("pipe2");
  UniqueFd error_output(pipe[0]), error_end(pipe[1]);
  UniqueFd nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!nothing) return fail_errno("open", "/dev/null");

  ProcessSpec spec;
  spec.arguments = std::move(command->arguments);
  spec.open_program = config.sandbox.bubblewrap->file.get();
  spec.fds = {{0, nothing.get()},
              {1, error_end.get()},
              {2, error_end.get()},
              {kControlFd, sockets->theirs.get()},
              {kConfigFd, (*zygote_config)->fd()},
              {kFilterFd, (*filter)->fd()}};
  for (const auto& [fd, content] : command->inputs) spec.fds.emplace_back(fd, content->fd());
  // Positions belong to the open file: after writing, or after a slot before this one, they stand at the end.
  for (const auto& [in_child, ours] : spec.fds) ::lseek(ours, 0, SEEK_SET);
  auto process = ChildProcess::start(spec);
  if (!process) return fail(process.error());
  process_.emplace(std::move(*process));
  return watch_process(std::move(sockets->ours), std::move(error_output));
}

Status Slot::watch_process(UniqueFd socket, UniqueFd error_output) {
  auto channel =
      FrameChannel::create(loop_, std::move(socket),
                           {[this](Frame frame) { on_frame(std::move(frame)); },
                            [this](std::optional<Error> error) {
                              if (error)
                                return lose("the zygote sent what is no frame: " + error->message, /*permanent=*/false);
                              on_ending("");
                            }});
  if (!channel) return fail(channel.error());
  channel_ = std::move(*channel);

  error_output_ = std::move(error_output);
  if (::fcntl(error_output_.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl", "pipe");
  auto watched = loop_.watch(error_output_.get(), EPOLLIN, [this](uint32_t) { read_error_output(); });
  if (!watched) return watched;
  watched = loop_.watch(process_->pidfd(), EPOLLIN, [this](uint32_t) { on_process_ended(); });
  if (!watched) return watched;
  watching_process_ = true;
  timer_ = loop_.run_after(limits::kSlotStart, [this] {
    timer_.reset();
    lose(fmt::format("the zygote was not ready within {} s{}", limits::kSlotStart.count(),
                     error_tail_.empty() ? "" : ": " + without_trailing_space(error_tail_)),
         /*permanent=*/false);
  });
  return {};
}

Slot::~Slot() {
  if (timer_) loop_.cancel(*timer_);
  if (error_output_) loop_.unwatch(error_output_.get());
  if (watching_process_) loop_.unwatch(process_->pidfd());
  // kcoral-init ends the slot when our socket closes. bubblewrap must not be killed before it could start that: killed
  // between the fork of its child and the first word to it, it leaves a child that waits for that word for ever.
  channel_.reset();
  if (process_ && !process_->wait_for(kOwnEndWait)) spdlog::warn("the slot does not end by itself, and is killed");
}

uint64_t Slot::prepare(ProcessEvents& events, bool ahead, UniqueFd runtime_socket, UniqueFd out, UniqueFd err) {
  const uint64_t id = next_id_++;
  listeners_[id] = &events;
  std::vector<OutgoingFd> fds;
  fds.emplace_back(std::move(runtime_socket));
  fds.emplace_back(std::move(out));
  fds.emplace_back(std::move(err));
  channel_->send({{"type", "prepare"}, {"id", id}, {"ahead", ahead}}, std::move(fds));
  return id;
}

void Slot::on_frame(Frame frame) {
  if (is_lost_) return;
  const std::string type = frame.type();
  if (auto taken = take_frame(std::move(frame)); !taken) {
    lose(fmt::format("the zygote sent a malformed \"{}\": {}", type, taken.error().message), /*permanent=*/false);
  }
}

Status Slot::take_frame(Frame frame) {
  const std::string type = frame.type();
  if (type == "zygote_ready") {
    auto versions = string_map_field(frame.body, "versions");
    if (!versions) return fail(versions.error());
    if (is_ready_) return fail(ErrorKind::kEngine, "it was ready before");
    is_ready_ = true;
    loop_.cancel(*timer_);
    timer_.reset();
    handlers_.on_ready(std::move(*versions));
    return {};
  }
  if (type == "zygote_failed") {
    auto message = string_field(frame.body, "message");
    if (!message) return fail(message.error());
    failed_by_itself_ = true;
    on_ending(std::move(*message));
    return {};
  }
  if (type == "prepared" || type == "exited" || type == "prepare_failed") {
    return take_frame_about_runtime(type, std::move(frame));
  }
  return fail(ErrorKind::kEngine, "there is no such type");
}

Status Slot::take_frame_about_runtime(const std::string& type, Frame frame) {
  auto id = unsigned_field(frame.body, "id");
  if (!id) return fail(id.error());
  const auto listener = listeners_.find(*id);
  ProcessEvents* const events = listener == listeners_.end() ? nullptr : listener->second;
  if (type == "prepared") {
    if (frame.fds.size() != 2) return fail(ErrorKind::kEngine, "{} descriptors instead of 2", frame.fds.size());
    if (events != nullptr) events->on_prepared(std::move(frame.fds[0]), std::move(frame.fds[1]));
    return {};
  }
  if (type == "exited") {
    auto end = process_end_from(frame.body);
    if (!end) return fail(end.error());
    if (events != nullptr) events->on_exited(*end);
    return {};
  }
  auto message = string_field(frame.body, "message");
  if (!message) return fail(message.error());
  if (events != nullptr) events->on_prepare_failed(*message);
  return {};
}

void Slot::read_error_output() {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t size = ::read(error_output_.get(), buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) {
      loop_.unwatch(error_output_.get());
      error_output_.reset();
      return;
    }
    const std::string_view text(buffer.data(), static_cast<size_t>(size));
    error_tail_.append(text);
    if (error_tail_.size() > limits::kShownBytesMax) error_tail_.erase(0, error_tail_.size() - limits::kShownBytesMax);
    error_line_.append(text);
    for (size_t end; (end = error_line_.find('\n')) != std::string::npos; error_line_.erase(0, end + 1)) {
      spdlog::info("slot: {}", std::string_view(error_line_).substr(0, end));
    }
    if (error_line_.size() > limits::kShownBytesMax) error_line_.clear();
  }
}

void Slot::on_ending(std::string reason) {
  if (is_lost_) return;
  if (ending_reason_.empty()) ending_reason_ = std::move(reason);
  // How the process ended says more than that its socket closed.
  if (timer_) loop_.cancel(*timer_);
  timer_ = loop_.run_after(kEndWait, [this] {
    timer_.reset();
    lose(ending_reason_.empty() ? "the zygote closed its socket" : ending_reason_,
         failed_by_itself_ && !tells_of_shortage(ending_reason_));
  });
}

void Slot::on_process_ended() {
  const auto status = process_->try_wait();
  if (!status) return;
  loop_.unwatch(process_->pidfd());
  watching_process_ = false;
  // What it said last may still stand in the socket.
  channel_->receive_all();
  if (is_lost_) return;
  if (error_output_) read_error_output();
  std::string reason = ending_reason_;
  if (reason.empty()) {
    reason = is_ready_ ? "the zygote ended" : "the slot could not be set up";
    reason += fmt::format(" ({})", describe(*status));
    if (!error_tail_.empty()) reason += ": " + without_trailing_space(error_tail_);
  }
  // A slot that ends by itself before it was ready will do so again, unless something ran short; one that was killed
  // may have been unlucky.
  const bool ended_by_itself = failed_by_itself_ || (!is_ready_ && !status->by_signal && status->number < 128);
  const bool permanent = ended_by_itself && !tells_of_shortage(reason);
  lose(std::move(reason), permanent);
}

void Slot::lose(std::string reason, bool permanent) {
  if (is_lost_) return;
  is_lost_ = true;
  handlers_.on_lost(std::move(reason), permanent);
}

}  // namespace kcoral::executor
