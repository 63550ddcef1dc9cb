#include "executor/supervisor/supervisor.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "base/failpoint.h"
#include "base/log.h"
#include "executor/frame_fields.h"
#include "executor/shortage.h"
#include "executor/supervisor/process_memory.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

constexpr auto kLockRetry = std::chrono::milliseconds(50);
constexpr auto kLockSayEvery = std::chrono::seconds(5);
constexpr auto kLastWordsWait = std::chrono::seconds(1);
constexpr uint64_t kUidMax = 0xfffffffe;

Result<SlotConfig> slot_config_from(const nlohmann::json& body) {
  SlotConfig config;
  auto python = string_field(body, "python");
  if (!python) return fail(python.error());
  config.sandbox.python = std::move(*python);
  auto environment = string_map_field(body, "environment");
  if (!environment) return fail(environment.error());
  config.sandbox.environment = std::move(*environment);
  for (const auto& [name, strings] :
       {std::pair{"read_only_paths", &config.sandbox.read_only_paths},
        std::pair{"hidden_paths", &config.sandbox.hidden_paths}, std::pair{"preload", &config.preload}}) {
    auto list = strings_field(body, name);
    if (!list) return fail(list.error());
    *strings = std::move(*list);
  }
  auto devices = device_ids_field(body, "devices");
  if (!devices) return fail(devices.error());
  config.devices = std::move(*devices);
  auto nodes = strings_field(body, "device_nodes");
  if (!nodes) return fail(nodes.error());
  config.sandbox.device_nodes = std::move(*nodes);
  auto uid = unsigned_field(body, "uid", kUidMax), gid = unsigned_field(body, "gid", kUidMax);
  if (!uid) return fail(uid.error());
  if (!gid) return fail(gid.error());
  config.sandbox.uid = static_cast<uid_t>(*uid);
  config.sandbox.gid = static_cast<gid_t>(*gid);
  const auto limits = body.find("limits");
  auto program_limits = program_limits_from(limits == body.end() ? nlohmann::json() : *limits);
  if (!program_limits) return fail(program_limits.error());
  config.limits = *program_limits;
  return config;
}

Result<RunRequest> run_request_from(Frame frame) {
  if (frame.fds.size() != 1) return fail(ErrorKind::kEngine, "a run with {} descriptors", frame.fds.size());
  RunRequest request;
  auto run = run_id_from(frame.body);
  if (!run) return fail(run.error());
  request.run = *run;
  auto timeout_ms = unsigned_field(frame.body, "timeout_ms", uint64_t{1} << 40);
  if (!timeout_ms) return fail(timeout_ms.error());
  request.timeout = std::chrono::milliseconds(*timeout_ms);
  auto output_limit = unsigned_field(frame.body, "output_limit_bytes", uint64_t{1} << 40);
  if (!output_limit) return fail(output_limit.error());
  request.output_limit_bytes = *output_limit;
  auto blobs = unsigned_field(frame.body, "blobs", limits::kBlobsMax);
  if (!blobs) return fail(blobs.error());
  request.blob_count = *blobs;
  auto gpu_count = unsigned_field(frame.body, "gpu_count", limits::kGpuCountMax);
  if (!gpu_count) return fail(gpu_count.error());
  request.lease_terms.count = *gpu_count;
  auto priority = integer_field(frame.body, "priority");
  if (!priority) return fail(priority.error());
  request.lease_terms.priority = *priority;
  auto program = SealedMemory::adopt(std::move(frame.fds[0]), std::numeric_limits<int64_t>::max());
  if (!program) return fail(program.error());
  request.program = std::move(*program);
  return request;
}

/// The first 32 of this process; none where the kernel does not tell.
__user_cap_data_struct capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  return ::syscall(SYS_capget, &header, sets) == 0 ? sets[0] : __user_cap_data_struct{};
}

/// Of the capabilities that this process has, if it has that one: runtimes that stand by step back, and are brought
/// forward when their program comes. What is started from here on does not inherit it.
Status keep_only_sys_nice() {
  const uint32_t kept = capabilities().permitted & (1u << CAP_SYS_NICE);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{{.effective = kept, .permitted = kept, .inheritable = 0}, {}};
  if (::syscall(SYS_capset, &header, sets) != 0) return fail_errno("capset");
  return {};
}

bool may_raise_priorities() {
  if ((capabilities().effective & (1u << CAP_SYS_NICE)) != 0) return true;
  rlimit limit;
  const auto needed = static_cast<rlim_t>(20 - ::getpriority(PRIO_PROCESS, 0));
  return ::getrlimit(RLIMIT_NICE, &limit) == 0 && limit.rlim_cur >= needed;
}

}  // namespace

Result<std::unique_ptr<Supervisor>> Supervisor::create(EventLoop& loop, InstallPaths paths, UniqueFd server) {
  std::unique_ptr<Supervisor> supervisor(new Supervisor(loop, std::move(paths)));
  Supervisor* raw = supervisor.get();
  auto channel = FrameChannel::create(loop, std::move(server),
                                      {[raw](Frame frame) { raw->on_frame(std::move(frame)); },
                                       [&loop](std::optional<Error> error) {
                                         if (error)
                                           spdlog::error("the server sent what is no frame: {}", error->message);
                                         loop.stop();
                                       }});
  if (!channel) return fail(channel.error());
  supervisor->server_ = std::move(*channel);
  supervisor->leases_.emplace(loop.clock(), [raw](const nlohmann::json& body) { raw->server_->send(body); });
  return supervisor;
}

Supervisor::~Supervisor() {
  for (const auto* timer : {&lock_timer_, &context_timer_}) {
    if (*timer) loop_.cancel(**timer);
  }
}

void Supervisor::on_frame(Frame frame) {
  if (is_broken_) return;
  const std::string type = frame.type();
  const auto taken = take_frame(std::move(frame));
  if (taken) return;
  if (type == "configure") return give_up(taken.error());
  break_off(fmt::format("frame \"{}\": {}", type, taken.error().message), /*permanent=*/false);
}

Status Supervisor::take_frame(Frame frame) {
  const std::string type = frame.type();
  if (type == "configure") return configure(frame);
  if (type == "run") return run_program(std::move(frame));
  if (type == "blobs") return take_blobs(std::move(frame));
  if (type == "cancel") return take_cancel(frame);
  if (type == "lease_granted") return leases_->take_grant(frame);
  if (type == "lease_denied") return leases_->take_denial(frame);
  if (type == "device_holder") return take_device_holder(frame);
  return fail(ErrorKind::kEngine, "there is no such type");
}

// --- setting up ---

void Supervisor::give_up(const Error& error) { break_off(error.message, is_permanent(error)); }

Status Supervisor::configure(const Frame& frame) {
  if (config_) return fail(ErrorKind::kEngine, "an executor is configured once");
  auto config = slot_config_from(frame.body);
  if (!config) return fail(config.error());
  auto standby = unsigned_field(frame.body, "standby", limits::kStandbyMax);
  if (!standby) return fail(standby.error());
  standby_size_ = *standby;
  auto runs_per_runtime = unsigned_field(frame.body, "runs_per_runtime");
  if (!runs_per_runtime) return fail(runs_per_runtime.error());
  runs_per_runtime_ = *runs_per_runtime;
  auto memory_bytes_max = unsigned_field(frame.body, "memory_bytes_max");
  if (!memory_bytes_max) return fail(memory_bytes_max.error());
  config->memory_bytes_max = *memory_bytes_max;
  if (*memory_bytes_max > 0 && !descendants_are_told()) {
    spdlog::warn(
        "this kernel does not tell of a process's children: what a program starts is not counted as its memory");
  }
  auto lease_wait = unsigned_field(frame.body, "lease_wait_ms_max", uint64_t{1} << 40);
  if (!lease_wait) return fail(lease_wait.error());
  lease_wait_max_ = std::chrono::milliseconds(*lease_wait);
  config->reuse = runs_per_runtime_ != 1;
  config_ = std::move(*config);
  auto lock_path = string_field(frame.body, "lock_path");
  if (!lock_path) return fail(lock_path.error());
  if (auto opened = open_lock(*lock_path); !opened) return opened;
  take_lock();
  return {};
}

Status Supervisor::open_lock(const std::string& path) {
  lock_path_ = path;
  lock_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock_) return fail_errno("open", path);
  lock_wait_said_ = loop_.clock().now();
  return {};
}

void Supervisor::take_lock() {
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return give_up(fail_errno("lock", lock_path_).value());
    if (loop_.clock().now() - lock_wait_said_ >= kLockSayEvery) {
      lock_wait_said_ = loop_.clock().now();
      spdlog::warn("waiting for the executor of an earlier server, which still holds {}", lock_path_);
    }
    lock_timer_ = loop_.run_after(kLockRetry, [this] {
      lock_timer_.reset();
      take_lock();
    });
    return;
  }
  if (auto started = start_slot(); !started) give_up(started.error());
}

Status Supervisor::start_slot() {
  auto files = load_slot_files(paths_);
  if (!files) return fail(files.error());
  config_->sandbox.files = std::move(*files);
  auto bubblewrap = open_bubblewrap(paths_);
  if (!bubblewrap) return fail(bubblewrap.error());
  config_->sandbox.bubblewrap = std::move(*bubblewrap);
  if (auto given_up = give_up_root(); !given_up) return given_up;
  Slot::Handlers handlers;
  handlers.on_ready = [this](std::map<std::string, std::string> versions) { on_ready(std::move(versions)); };
  handlers.on_lost = [this](std::string reason, bool permanent) { break_off(reason, permanent); };
  auto slot = Slot::start(loop_, *config_, std::move(handlers));
  if (!slot) return fail(slot.error());
  slot_ = std::move(*slot);
  Standby::Setup standby{standby_size_, runs_per_runtime_, may_raise_priorities(), {}, {}};
  // A slot with several devices runs programs that lease several: which ones is known when they do.
  if (config_->devices.size() == 1) {
    standby.contexts = {&*leases_, config_->devices, [this](const Status& made) { on_first_context(made); }};
  }
  // The server ends what it held with this process, and whoever looks after devices finds it.
  standby.on_stuck = [this](const std::string& reason) { break_off(reason, /*permanent=*/false); };
  standby_ = std::make_unique<Standby>(loop_, *slot_, std::move(standby));
  return {};
}

Status Supervisor::give_up_root() const {
  const uid_t uid = config_->sandbox.uid;
  const gid_t gid = config_->sandbox.gid;
  if (uid == 0) return fail(ErrorKind::kEnvironment, "a slot never runs as uid 0: choose an unprivileged user");
  if (::geteuid() != 0) {
    if (::getuid() == uid && ::getgid() == gid) return {};
    return fail(ErrorKind::kEnvironment, "only root can run a slot as another user (uid {}, gid {})", uid, gid);
  }
  ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);  // those that go are named below
  if (::setgroups(0, nullptr) != 0) return fail_errno("setgroups");
  if (::setresgid(gid, gid, gid) != 0) return fail_errno("setresgid");
  if (::setresuid(uid, uid, uid) != 0) return fail_errno("setresuid");
  if (auto kept = keep_only_sys_nice(); !kept) return kept;
  KCORAL_CHECK(::setuid(0) != 0);
  return {};
}

void Supervisor::on_ready(std::map<std::string, std::string> versions) {
  versions_ = std::move(versions);
  const bool waits_for_context = config_->devices.size() == 1 && standby_size_ > 0;
  if (waits_for_context) await_first_context();
  standby_->refill();
  if (!waits_for_context) say_idle();
}

void Supervisor::await_first_context() {
  context_timer_ = loop_.run_after(limits::kContextWait, [this] {
    context_timer_.reset();
    if (is_set_up_) return;
    if (!standby_->waits_for_device()) return await_first_context();  // what it does has its own bounds
    // Programs come first, so on a busy server the turn of a slot that was replaced may never come.
    spdlog::warn(
        "no CUDA context could be made within {} s, for others have the device; programs may come all the same",
        limits::kContextWait.count());
    say_idle();
  });
}

void Supervisor::on_first_context(const Status& made) {
  if (is_set_up_ || is_broken_) return;
  // Memory of the device passes: a program that gave its lease back may hold it. Whoever needs the device finds out.
  if (made || tells_of_shortage(made.error().message)) return say_idle();
  break_off(made.error().message, is_permanent(made.error()));
}

void Supervisor::say_idle() {
  is_idle_ = is_set_up_ = true;
  server_->send({{"type", "idle"}, {"python", config_->sandbox.python}, {"versions", versions_}});
}

// --- running ---

Status Supervisor::run_program(Frame frame) {
  if (!is_idle_) return fail(ErrorKind::kEngine, "the slot is not idle");
  failpoint("executor.run.received");
  auto request = run_request_from(std::move(frame));
  if (!request) return fail(request.error());
  is_idle_ = false;
  ProgramRun::Handlers handlers;
  handlers.send = [this](const nlohmann::json& body, std::vector<OutgoingFd> fds) {
    server_->send(body, std::move(fds));
  };
  handlers.on_done = [this](ProgramRun::Aftermath aftermath) {
    loop_.post([this, aftermath] { on_run_done(aftermath); });
  };
  handlers.on_broken = [this](const std::string& reason) { break_off(reason, /*permanent=*/false); };
  auto runtime = standby_->take();
  if (!runtime) return fail(runtime.error());
  request->lease_terms.slot_devices = config_->devices;
  request->lease_terms.wait_max = lease_wait_max_;
  request->memory_bytes_max = config_->memory_bytes_max;
  // CUDA shows the devices of the first lease for the rest of a process: only where all have the same can it go on.
  request->keep_runtime = standby_->may_come_back(**runtime) && config_->devices.size() <= 1;
  auto run = ProgramRun::start(loop_, *leases_, std::move(*runtime), std::move(*request), std::move(handlers));
  if (!run) return fail(run.error());
  run_ = std::move(*run);
  standby_->refill();
  return {};
}

Status Supervisor::take_blobs(Frame frame) {
  auto run = run_id_from(frame.body);
  if (!run) return fail(run.error());
  if (!run_ || run_->run_id() != *run) return {};  // it is over already
  return run_->add_blobs(std::move(frame));
}

Status Supervisor::take_device_holder(const Frame& frame) {
  auto run = run_id_from(frame.body);
  if (!run) return fail(run.error());
  if (!run_ || run_->run_id() != *run) return {};  // it is over already
  return run_->note_device_holder(frame);
}

Status Supervisor::take_cancel(const Frame& frame) {
  auto run = run_id_from(frame.body);
  if (!run) return fail(run.error());
  if (run_ && run_->run_id() == *run) run_->cancel();
  return {};
}

void Supervisor::on_run_done(ProgramRun::Aftermath aftermath) {
  if (aftermath == ProgramRun::Aftermath::kKept) standby_->give_back(run_->take_runtime());
  run_.reset();
  if (!is_broken_) say_idle();
}

void Supervisor::break_off(const std::string& message, bool permanent) {
  if (is_broken_) return;
  is_broken_ = true;
  spdlog::error("{}", message);
  // A frame has room for one clear message, and a slot's standard error may be long.
  server_->send(
      {{"type", "broken"}, {"message", message.substr(0, limits::kFrameMessageBytesMax)}, {"permanent", permanent}});
  server_->finish_sending(kLastWordsWait);
  loop_.stop();
}

}  // namespace kcoral::executor
