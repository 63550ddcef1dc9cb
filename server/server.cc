#include "server/server.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/event_loop.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/mutex.h"
#include "devices/devices.h"
#include "devices/watch.h"
#include "executor/install_paths.h"
#include "executor/python_finder.h"
#include "executor/remote_executor.h"
#include "executor/sandbox/preflight.h"
#include "gateway/gateway.h"
#include "scheduler/scheduler.h"
#include "server/backup_service.h"
#include "server/device_choice.h"
#include "server/identity.h"
#include "server/old_executors.h"
#include "store/store.h"

namespace kcoral::server {
namespace {

/// Every connection, blob and executor is a descriptor: take what the system allows.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

UniqueFd block_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  return UniqueFd(::signalfd(-1, &stop, SFD_CLOEXEC | SFD_NONBLOCK));
}

/// "GPU 0, NVIDIA H200 (sm_90a)".
std::string describe_devices(const std::vector<devices::Device>& devices, ServerOptions::DeviceMode mode) {
  if (devices.empty()) return mode == ServerOptions::DeviceMode::kCpu ? "CPU" : "CPU, for no NVIDIA GPU is to be seen";
  std::vector<int> ids;
  for (const devices::Device& device : devices) ids.push_back(device.id);
  return fmt::format("GPU{} {}, {} ({})", ids.size() == 1 ? "" : "s", fmt::join(ids, ", "), devices.front().name,
                     devices.front().arch);
}

class Server {
 public:
  explicit Server(const ServerOptions& options) : options_(options) {}
  ~Server() { close(); }

  /// Looks at the host. Blocks; requires that no thread of ours runs yet.
  Status prepare();
  /// Returns once the service has been stopped, or with the reason why it could not start or go on.
  Status run(UniqueFd signals);

 private:
  Status start_parts(int signals);
  Status check_exposed_paths(const std::string& data_dir) const;
  void close();
  void serve_backups();
  std::vector<std::unique_ptr<executor::Executor>> make_executors();
  executor::ExecutorConfig executor_config(size_t slot, uid_t uid) const;
  std::vector<int> device_ids() const;
  std::vector<gateway::GpuFacts> gpus() const;
  int gpu_count_max() const;
  gateway::GatewayConfig gateway_config() const;
  gateway::HealthFacts health() const;
  gateway::MetricsFacts metrics() const;
  void on_ready(const executor::ExecutorInfo& info);
  void on_unable(Error error);
  void on_signal(int signals);
  void begin_stop();

  const ServerOptions& options_;
  Clock& clock_ = Clock::system();
  const Uuid instance_id_ = Uuid::random();
  const WallTime started_at_ = clock_.wall_now();
  Identity identity_;
  bool has_own_users_ = false;  // the slots, instead of sharing the identity's
  std::string data_dir_;
  std::unique_ptr<devices::Devices> all_devices_;  // null where there is none, and on a CPU server
  std::vector<devices::Device> devices_;           // that this server uses; none on a CPU server
  std::vector<std::vector<int>> slot_devices_;     // of each slot
  executor::PythonChoice python_;
  std::vector<std::string> preload_;
  executor::InstallPaths paths_;

  // `close` ends them in order: the gateway and the scheduler use the store, whose threads tell the scheduler of new
  // work.
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<devices::Watch> watch_;
  std::unique_ptr<scheduler::Scheduler> scheduler_;
  std::unique_ptr<gateway::Gateway> gateway_;
  std::unique_ptr<BackupService> backups_;  // null where it cannot be

  mutable Mutex health_mutex_;
  std::map<std::string, std::string> versions_ KCORAL_GUARDED_BY(health_mutex_);
  std::string_view status_ KCORAL_GUARDED_BY(health_mutex_) = "starting";
  bool stopping_ = false;
  std::optional<Error> unable_;
};

Status Server::run(UniqueFd signals) {
  auto loop = EventLoop::create(clock_);
  if (!loop) return fail(loop.error());
  loop_ = std::move(*loop);
  const int signal_fd = signals.get();
  if (auto watched = loop_->watch(signal_fd, EPOLLIN, [=, this](uint32_t) { on_signal(signal_fd); }); !watched) {
    return watched;
  }
  if (auto started = start_parts(signal_fd); !started) return started;
  loop_->run();
  close();
  if (unable_) return fail(*unable_);
  spdlog::info("stopped");
  return {};
}

void Server::close() {
  backups_.reset();
  if (gateway_) {
    gateway_->release_waiting();
    gateway_->stop();
  }
  if (store_) store_->close();
  if (watch_) watch_->stop();
  scheduler_.reset();
  gateway_.reset();
  watch_.reset();
  store_.reset();
}

Status Server::prepare() {
  auto identity = sandbox_identity(options_.sandbox_user);
  if (!identity) return fail(identity.error());
  identity_ = *identity;
  auto executable = executor::own_executable();
  if (!executable) return fail(executable.error());
  auto paths = executor::find_install_paths(*executable);
  if (!paths) return fail(paths.error());
  paths_ = *paths;
  std::optional<std::string> wanted_python;
  if (!options_.python.empty()) wanted_python = options_.python;
  auto python = executor::find_python(wanted_python, identity_.uid, identity_.gid);
  if (!python) return fail(python.error());
  python_ = *python;
  auto opened = open_devices(options_);
  if (!opened) return fail(opened.error());
  all_devices_ = std::move(*opened);
  auto chosen = choose_devices(options_, all_devices_.get());
  if (!chosen) return fail(chosen.error());
  devices_ = std::move(chosen->devices);
  slot_devices_ = std::move(chosen->slots);
  const bool preloads_torch = !options_.preload && !devices_.empty() && python_.has_torch;
  preload_ = preloads_torch ? std::vector<std::string>{"torch"} : options_.preload.value_or(std::vector<std::string>());
  return executor::check_sandbox(paths_, identity_.uid, identity_.gid);
}

std::vector<int> Server::device_ids() const {
  std::vector<int> ids;
  for (const devices::Device& device : devices_) ids.push_back(device.id);
  return ids;
}

Status Server::start_parts(int signals) {
  auto opened = store::open_store({.data_dir = options_.data_dir,
                                   .blob_cache_bytes = options_.blob_cache_bytes,
                                   .gpu_count_max = gpu_count_max(),
                                   .queued_requests_max = options_.queued_requests_max,
                                   .queued_requests_of_client_max = options_.queued_requests_of_client_max,
                                   .retention = options_.retention},
                                  clock_);
  if (!opened) return fail(opened.error());
  store_ = std::move(*opened);
  failpoint("recovery.start.opened");
  // Its real place, whatever links lead there: what is hidden from programs must be named as the kernel sees it.
  data_dir_ = std::filesystem::canonical(options_.data_dir);
  if (auto checked = check_exposed_paths(data_dir_); !checked) return checked;
  if (auto gone = wait_for_old_executors(data_dir_, limits::kSlotStart, signals); !gone) return gone;
  if (!devices_.empty()) {
    auto watch = devices::Watch::create(*all_devices_, device_ids());
    if (!watch) return fail(watch.error());
    watch_ = std::move(*watch);
  }
  const auto order =
      options_.runs_per_runtime == 1 ? scheduler::Roster::Order::kLongestIdle : scheduler::Roster::Order::kShortestIdle;
  scheduler_ = std::make_unique<scheduler::Scheduler>(
      make_executors(), *store_, *loop_,
      scheduler::SchedulerConfig{options_.response_bytes_max, device_ids(), watch_.get(), order});
  if (auto recovered = store_->recover(); !recovered) return recovered;
  if (const uint64_t kept = store_->counts().queued; kept > 0) spdlog::info("{} queued before, taken up now", kept);
  auto gateway =
      gateway::Gateway::start(gateway_config(), *store_, clock_,
                              {[this] { return health(); }, [this] { return gpus(); }, [this] { return metrics(); }});
  if (!gateway) return fail(gateway.error());
  gateway_ = std::move(*gateway);
  serve_backups();
  scheduler_->start({[this](const executor::ExecutorInfo& info) { on_ready(info); },
                     [this](Error error) { on_unable(std::move(error)); }});
  return {};
}

void Server::serve_backups() {
  auto backups = BackupService::start(*store_, data_dir_);
  if (backups) {
    backups_ = std::move(*backups);
  } else {
    spdlog::warn("`kcoral backup` will not reach this server: {}", backups.error().message);
  }
}

Status Server::check_exposed_paths(const std::string& data_dir) const {
  for (const std::string& path : options_.read_only_paths) {
    std::error_code error;
    const std::string real = std::filesystem::canonical(path, error);
    if (error) return fail(ErrorKind::kEnvironment, "--expose {}: {}", path, error.message());
    const auto is_below = [](const std::string& inner, const std::string& outer) {
      return inner == outer || outer == "/" || inner.starts_with(outer + "/");
    };
    if (is_below(data_dir, real) || is_below(real, data_dir)) {
      return fail(ErrorKind::kEnvironment, "--expose {} would show programs the data directory {}", path, data_dir);
    }
  }
  return {};
}

std::vector<std::unique_ptr<executor::Executor>> Server::make_executors() {
  std::vector<std::unique_ptr<executor::Executor>> executors;
  const std::vector<uid_t> uids = slot_uids(identity_, slot_devices_.size());
  has_own_users_ = uids.front() != identity_.uid;
  for (size_t slot = 0; slot < slot_devices_.size(); ++slot) {
    executors.push_back(std::make_unique<executor::RemoteExecutor>(*loop_, executor_config(slot, uids[slot])));
  }
  return executors;
}

executor::ExecutorConfig Server::executor_config(size_t slot, uid_t uid) const {
  executor::ExecutorConfig config;
  config.name = fmt::format("executor-{}", slot);
  config.executor_path = paths_.executor;
  config.log_level = options_.log_level;
  config.lock_path = executor_lock_path(data_dir_, static_cast<uint32_t>(slot));
  config.python = python_.path;
  config.preload = preload_;
  config.standby = options_.standby;
  config.runs_per_runtime = options_.runs_per_runtime;
  config.memory_bytes_max = options_.memory_bytes_max;
  config.uid = uid;
  config.gid = identity_.gid;
  config.environment = options_.environment;
  config.read_only_paths = python_.read_only_paths;
  for (const std::string& path : options_.read_only_paths) config.read_only_paths.push_back(path);
  config.hidden_paths = {data_dir_};
  config.lease_wait_max = options_.lease_wait;
  config.devices = slot_devices_[slot];
  if (config.devices.empty()) return config;
  config.device_nodes = devices::shared_device_nodes();
  for (const int id : config.devices) {
    config.device_nodes.push_back(all_devices_->list()[static_cast<size_t>(id)].node);
  }
  return config;
}

gateway::GatewayConfig Server::gateway_config() const {
  gateway::GatewayConfig config;
  config.host = options_.host;
  config.port = options_.port;
  config.request_bytes_max = options_.request_bytes_max;
  config.allowed_hosts = options_.allowed_hosts;
  config.worker_wait = options_.worker_wait;
  config.abandoned_after = options_.abandoned_after;
  config.bounds.timeout_seconds_max = options_.timeout_seconds_max;
  config.bounds.output_limit_bytes_max = options_.output_limit_bytes_max;
  config.bounds.gpu_count_max = gpu_count_max();
  return config;
}

int Server::gpu_count_max() const {
  return std::clamp(static_cast<int>(devices_.size()), 1, static_cast<int>(limits::kGpuCountMax));
}

gateway::HealthFacts Server::health() const {
  const store::Counts counts = store_->counts();
  gateway::HealthFacts facts;
  facts.instance_id = instance_id_.str();
  facts.started_at = started_at_;
  const scheduler::Scheduler::Capacity capacity = scheduler_->capacity();
  facts.request_capacity = capacity.slots;
  for (const auto& [executor, quarantine] : capacity.quarantined) {
    facts.quarantined.push_back({executor, quarantine.since, quarantine.reason});
  }
  facts.requests_in_progress = counts.in_progress;
  facts.requests_waiting = counts.queued;
  facts.gpu_count = static_cast<int>(devices_.size());
  if (!devices_.empty()) facts.arch = devices_.front().arch;
  const MutexLock lock(health_mutex_);
  facts.status = status_;
  facts.versions = versions_;
  facts.versions["kcoral"] = KCORAL_VERSION;
  if (all_devices_) facts.versions["driver"] = all_devices_->driver_version();
  return facts;
}

std::vector<gateway::GpuFacts> Server::gpus() const {
  std::vector<gateway::GpuFacts> all;
  const auto views = scheduler_->devices();  // by id, as devices_ is
  KCORAL_CHECK(views.size() == devices_.size());
  for (size_t i = 0; i < views.size(); ++i) {
    const devices::Device& device = devices_[i];
    const scheduler::Leases::DeviceView& view = views[i];
    gateway::GpuFacts facts;
    facts.id = device.id;
    facts.name = device.name;
    facts.uuid = device.uuid;
    facts.arch = device.arch;
    facts.memory_bytes = device.memory_bytes;
    if (const auto state = watch_->state(device.id)) {
      facts.memory_used_bytes = state->memory_used_bytes;
      facts.utilisation_percent = state->utilisation_percent;
      facts.temperature_celsius = state->temperature_celsius;
      facts.sm_clock_mhz = state->sm_clock_mhz;
    }
    if (view.holder) {
      facts.holder.emplace(gateway::GpuFacts::Holder{{}, view.holder->executor, view.since});
      if (view.holder->request_id) facts.holder->request_id = view.holder->request_id->str();
    }
    if (!view.trouble.empty()) facts.quarantine.emplace(gateway::GpuFacts::Quarantine{view.since, view.trouble});
    facts.waiters = view.table.waiters;
    facts.handovers = view.table.handovers;
    facts.idle_between_ms = to_ms(view.table.idle_between);
    all.push_back(std::move(facts));
  }
  return all;
}

gateway::MetricsFacts Server::metrics() const {
  gateway::MetricsFacts facts;
  facts.version = KCORAL_VERSION;
  facts.started_at = started_at_;
  facts.requests = store_->counts();
  facts.store = store_->figures();
  facts.executors = scheduler_->executor_states();
  if (auto leases = scheduler_->lease_figures()) facts.leases = {std::move(leases->waited), std::move(leases->held)};
  facts.gpus = gpus();
  return facts;
}

void Server::on_ready(const executor::ExecutorInfo& info) {
  if (stopping_) return;
  {
    const MutexLock lock(health_mutex_);
    versions_ = info.versions;
    status_ = "ok";
  }
  const bool is_ipv6 = options_.host.find(':') != std::string::npos;
  const std::string host = is_ipv6 ? "[" + options_.host + "]" : options_.host;
  fmt::print(
      "kcoral {} ready at http://{}:{} · {} · {} worker{}{} · Python {} ({}: {}){} · sandbox bubblewrap, {} · data in "
      "{}\n",
      KCORAL_VERSION, host, gateway_->port(), describe_devices(devices_, options_.device), slot_devices_.size(),
      slot_devices_.size() == 1 ? "" : "s", options_.runs_per_runtime == 1 ? "" : ", programs share processes",
      python_.version, python_.path, python_.why,
      preload_.empty() ? "" : fmt::format(", preloaded {}", fmt::join(preload_, ", ")),
      has_own_users_ ? "a user for each worker" : "user " + identity_.name, data_dir_);
  std::fflush(stdout);
}

void Server::on_unable(Error error) {
  unable_ = std::move(error);
  loop_->stop();
}

void Server::on_signal(int signals) {
  signalfd_siginfo received;
  while (::read(signals, &received, sizeof received) == sizeof received) {
    const int number = static_cast<int>(received.ssi_signo);
    // Executors end with their channel, and the next start recovers what they ran.
    if (stopping_) ::_exit(128 + number);
    begin_stop();
  }
}

void Server::begin_stop() {
  stopping_ = true;
  const store::Counts counts = store_->counts();
  spdlog::info("stopping: {} running, at most {} s to finish; {} queued, kept for the next start", counts.in_progress,
               options_.shutdown_grace.count(), counts.queued);
  {
    const MutexLock lock(health_mutex_);
    status_ = "stopping";
  }
  gateway_->stop_admitting();
  scheduler_->drain(options_.shutdown_grace, [this] { loop_->stop(); });
}

}  // namespace

int run_server(const ServerOptions& options) {
  start_log("server");
  spdlog::set_level(spdlog::level::from_str(options.log_level));
  raise_descriptor_limit();
  Server server(options);
  Status status = arm_failpoints(std::getenv("KCORAL_FAILPOINT"));
  if (status) status = server.prepare();
  // From here on signals are read by the loop: every thread that follows is started with them blocked.
  if (status) status = server.run(block_signals());
  if (status) return 0;
  fmt::print(stderr, "kcoral server: {}\n", status.error().message);
  return 1;
}

}  // namespace kcoral::server
