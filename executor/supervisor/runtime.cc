#include "executor/supervisor/runtime.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "executor/frame_fields.h"
#include "executor/pidfd.h"
#include "schema/fields.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

/// As /proc here numbers it; 0 when it has ended already.
pid_t pid_of(const UniqueFd& pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd.get()));
  for (std::string line; std::getline(info, line);) {
    // -1 when it has ended already.
    if (line.starts_with("Pid:")) return std::max(0, std::atoi(line.c_str() + 4));
  }
  return 0;
}

bool process_has_ended(const UniqueFd& pidfd) {
  pollfd process{pidfd.get(), POLLIN, 0};
  return ::poll(&process, 1, 0) != 0;
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::prepare(EventLoop& loop, Slot& slot, bool ahead) {
  std::unique_ptr<Runtime> runtime(new Runtime(loop, slot));
  runtime->is_behind_ = ahead;
  if (auto opened = runtime->open(ahead); !opened) return fail(opened.error());
  return runtime;
}

Status Runtime::open(bool ahead) {
  UniqueFd out_end, err_end;
  for (const auto& [capture, end] : {std::pair{&out_, &out_end}, std::pair{&err_, &err_end}}) {
    auto created = OutputCapture::create(loop_, *end);
    if (!created) return fail(created.error());
    *capture = std::move(*created);
  }
  auto sockets = make_frame_sockets();
  if (!sockets) return fail(sockets.error());
  auto channel = FrameChannel::create(loop_, std::move(sockets->ours),
                                      {[this](Frame frame) { on_frame(std::move(frame)); },
                                       [this](std::optional<Error> error) {
                                         is_closed_ = true;
                                         events_->on_runtime_closed(std::move(error));
                                       }});
  if (!channel) return fail(channel.error());
  channel_ = std::move(*channel);
  id_ = slot_.prepare(*this, ahead, std::move(sockets->theirs), std::move(out_end), std::move(err_end));
  return {};
}

Runtime::~Runtime() {
  if (id_ != 0) slot_.forget(id_);
  if (runtime_watched_) loop_.unwatch(runtime_pidfd_.get());
  if (init_watched_) loop_.unwatch(init_pidfd_.get());
}

bool Runtime::is_usable() const { return !has_failed_ && !is_closed_ && !has_ended(); }

bool Runtime::has_ended() const { return runtime_status_ || (runtime_pidfd_ && process_has_ended(runtime_pidfd_)); }

bool Runtime::is_alive() const { return init_pidfd_ && !process_has_ended(init_pidfd_); }

void Runtime::send(const nlohmann::json& body, std::vector<OutgoingFd> fds) { channel_->send(body, std::move(fds)); }

pid_t Runtime::host_pid() const { return pid_of(runtime_pidfd_); }

std::vector<pid_t> Runtime::host_pids() const {
  std::vector<pid_t> pids;
  for (const UniqueFd* pidfd : {&init_pidfd_, &runtime_pidfd_}) {
    if (const pid_t pid = pid_of(*pidfd); pid > 0) pids.push_back(pid);
  }
  return pids;
}

// --- what the zygote says ---

void Runtime::on_prepared(UniqueFd init, UniqueFd runtime) {
  if (init_pidfd_) return;
  init_pidfd_ = std::move(init);
  runtime_pidfd_ = std::move(runtime);
  const auto watched = loop_.watch(runtime_pidfd_.get(), EPOLLIN, [this](uint32_t) { on_process_ended(); });
  runtime_watched_ = watched.has_value();
  if (is_ending_) return kill_init();
  if (!watched) return fail_early(watched.error());
  // `ready` and `prepared` come on two sockets, in either order.
  if (!said_ready_) return;
  take_priority_if_ready();
  events_->on_runtime_ready();
}

void Runtime::on_prepare_failed(const std::string& message) {
  no_processes_ = true;
  if (!is_ending_) fail_early({ErrorKind::kEngine, "no process could be prepared: " + message});
  say_if_gone();
}

void Runtime::on_exited(const ProcessEnd& end) {
  (end.process == ProcessEnd::Process::kRuntime ? runtime_status_ : init_status_) = end.status;
  say_if_gone();
}

// --- what it says and does itself ---

void Runtime::on_frame(Frame frame) {
  if (context_ && context_->take(frame)) return;
  if (said_ready_) return events_->on_runtime_frame(std::move(frame));
  if (!has_failed_) take_first_frame(frame);
}

void Runtime::take_first_frame(const Frame& frame) {
  const std::string type = frame.type();
  if (type == "ready") {
    said_ready_ = true;
    take_priority_if_ready();
    if (runtime_pidfd_) events_->on_runtime_ready();
    return;
  }
  // Between two programs the device is given back as soon as it is idle.
  if (type == "lease_release" && recycled_count_ > 0) return events_->on_runtime_frame(Frame{frame.body, {}});
  const bool is_unfit = type == "unfit" && recycled_count_ > 0;
  if (type != "setup_failed" && !is_unfit) {
    return fail_early({ErrorKind::kEngine, fmt::format("the runtime sent {} out of order", schema::quote_short(type))});
  }
  auto message = string_field(frame.body, "message");
  if (!message) return fail_early(message.error());
  if (is_unfit) return fail_early({ErrorKind::kConflict, message->substr(0, limits::kShownBytesMax)});
  fail_early({ErrorKind::kEnvironment,
              "the program's sandbox could not be set up: " + message->substr(0, limits::kShownBytesMax)});
}

void Runtime::on_process_ended() {
  loop_.unwatch(runtime_pidfd_.get());
  runtime_watched_ = false;
  events_->on_runtime_ended();
}

void Runtime::fail_early(Error error) {
  has_failed_ = true;
  events_->on_runtime_failed(error);
}

void Runtime::make_context(DeviceLeases& leases, const std::vector<int>& devices) {
  KCORAL_CHECK(said_ready_);
  if (context_) return;
  ContextMaking::Handlers handlers;
  handlers.send = [this](const nlohmann::json& body) { send(body); };
  handlers.made = [this] { events_->on_runtime_warm(); };
  handlers.failed = [this](Error error) { fail_early(std::move(error)); };
  context_ = std::make_unique<ContextMaking>(loop_, leases, devices, std::move(handlers));
}

void Runtime::come_forward() {
  if (context_) context_->stop();
  is_wanted_ = true;
  take_priority_if_ready();
}

void Runtime::take_priority_if_ready() {
  if (!is_behind_ || !is_wanted_ || !is_ready()) return;
  is_behind_ = false;
  const pid_t pid = host_pid();  // 0 would be this process
  if (pid > 0) ::setpriority(PRIO_PROCESS, static_cast<id_t>(pid), ::getpriority(PRIO_PROCESS, 0));
}

void Runtime::recycle() {
  said_ready_ = false;
  ++recycled_count_;
  send({{"type", "recycle"}});
}

// --- how it ends ---

void Runtime::end() {
  if (std::exchange(is_ending_, true)) return;
  if (init_pidfd_) kill_init();
  say_if_gone();
}

void Runtime::kill_init() {
  signal_process(init_pidfd_.get(), SIGKILL);
  const auto watched = loop_.watch(init_pidfd_.get(), EPOLLIN, [this](uint32_t) {
    loop_.unwatch(init_pidfd_.get());
    init_watched_ = false;
    init_gone_ = true;
    say_if_gone();
  });
  init_watched_ = watched.has_value();  // else nobody hears that it is gone, and a kill wait runs out
}

void Runtime::say_if_gone() {
  const bool nothing_left = no_processes_ || (init_gone_ && runtime_status_ && init_status_);
  if (!is_ending_ || !nothing_left || std::exchange(is_gone_, true)) return;
  if (context_) context_->on_runtime_gone();
  events_->on_runtime_gone();
}

}  // namespace kcoral::executor
