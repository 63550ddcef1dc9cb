#include "server/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "server/config_file.h"

namespace kcoral::server {
namespace {

constexpr char kFooter[] = R"(
Examples:
  kcoral server --device cpu --num-workers 4 --data-dir /var/lib/kcoral
  kcoral server --gpus 0,1 --python /opt/venv/bin/python3
  kcoral server --host 0.0.0.0 --port 8000 --preload numpy --python /opt/venv/bin/python3
  kcoral server --port 9000 --print-config > kcoral.toml; kcoral server --config kcoral.toml

Stopping: SIGTERM or Ctrl-C takes no new programs (they get 503), finishes what runs within
--shutdown-grace-seconds, keeps what is queued for the next start and exits with 0. A second signal ends it at once.)";

constexpr char kBackupFooter[] = R"(
The server goes on as before, and DIR is there only once it is whole. It is a data directory like the server's: start from
it with `kcoral server --data-dir DIR`, on this machine or another, also beside the server that it is a backup of (with
another --port). On the server's own disk it shares large files with it, and takes little room.

Examples:
  kcoral backup /backups/$(date +%F)
  kcoral backup --data-dir /srv/kcoral /backups/before-the-upgrade)";

std::string default_data_dir() {
  if (::geteuid() == 0) return "/var/lib/kcoral";
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') {
    return std::string(state) + "/kcoral";
  }
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : ".") + "/.local/state/kcoral";
}

/// What CLI11 fills in before it becomes ServerOptions.
struct RawOptions {
  std::string config_path;
  bool print_config = false;
  std::string device = "auto";
  std::vector<int> gpus;
  std::vector<std::string> preload;
  uint64_t lease_wait_seconds = limits::kLeaseWait.count();
  std::vector<std::string> environment;
  uint64_t worker_wait_seconds = limits::kWorkerWait.count();
  uint64_t shutdown_grace_seconds = limits::kShutdownGrace.count();
  uint64_t abandoned_after_seconds = limits::kAbandonedAfter.count();
  uint64_t history_days = limits::kHistoryDaysDefault;
  uint64_t artifact_bytes_max = limits::kArtifactCapacityBytesDefault;
};

void add_config_options(CLI::App& app, RawOptions& raw) {
  const std::string group = "Configuration";
  app.add_option(
         "--config", raw.config_path,
         "Settings from a TOML file: options by their names without the dashes, e.g. num-workers = 4; flags and "
         "environment variables win over it")
      ->group(group);
  app.add_flag("--print-config", raw.print_config,
               "Print what is in force and where it came from, as such a file, and exit")
      ->group(group);
}

/// The machine's, or a container's if that may have less; 0 where neither is known.
uint64_t memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page_bytes = ::sysconf(_SC_PAGESIZE);
  uint64_t bytes = pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : 0;
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0 && (bytes == 0 || limit < bytes)) bytes = limit;
  }
  return bytes;
}

// Less than an interpreter with a few modules holds.
constexpr uint64_t kMemoryBytesMin = 64 * limits::kMiB;
constexpr uint64_t kBytesMax = uint64_t{1} << 40;

/// A whole number in a range, or 0 where that means "no bound". (CLI11's own conversion takes -1 for a large one.)
CLI::Validator whole_number(uint64_t min, uint64_t max, bool zero_too = false) {
  const std::string what = fmt::format("a whole number from {} to {}{}", min, max, zero_too && min > 0 ? ", or 0" : "");
  return CLI::Validator(
      [=](const std::string& text) {
        uint64_t number = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, number);
        const bool is_in = (number >= min && number <= max) || (zero_too && number == 0);
        return error == std::errc() && rest == end && is_in ? "" : text + " is not " + what;
      },
      "");
}

void add_service_options(CLI::App& app, ServerOptions& options, RawOptions& raw) {
  const std::string group = "Service";
  app.add_option("--device", raw.device, "What programs run on: gpu, cpu, or auto: gpu where there is one")
      ->envname("KCORAL_SERVER_DEVICE")
      ->check(CLI::IsMember({"auto", "cpu", "gpu"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--gpus", raw.gpus,
                 "Which GPUs, as nvidia-smi numbers them, e.g. 0,1 [default: those of CUDA_VISIBLE_DEVICES, or all]")
      ->envname("KCORAL_SERVER_GPUS")
      ->delimiter(',')
      ->check(whole_number(0, limits::kDeviceIdMax))
      ->group(group);
  app.add_option("--workers-per-gpu", options.slots_per_gpu,
                 "How many programs share each GPU: they take turns on it, and do the rest of their work at once")
      ->check(whole_number(1, 64))
      ->capture_default_str()
      ->group(group);
  app.add_option("--num-workers", options.slots, "How many programs a CPU server runs at once")
      ->check(whole_number(1, 256))
      ->capture_default_str()
      ->group(group);
  app.add_option("--data-dir", options.data_dir, "Where the queue, blobs, answers and audit records are kept")
      ->capture_default_str()
      ->group(group);
  app.add_option("--host", options.host, "Address to listen on; 0.0.0.0 for every interface")
      ->envname("KCORAL_SERVER_HOST")
      ->capture_default_str()
      ->group(group);
  app.add_option("--port", options.port, "Port to listen on; 0 picks a free one, which the ready line shows")
      ->envname("KCORAL_SERVER_PORT")
      ->check(whole_number(0, 65535))
      ->capture_default_str()
      ->group(group);
  app.add_option("--allowed-host", options.allowed_hosts,
                 "A Host header that a server bound to loopback accepts besides loopback names; may be repeated")
      ->group(group);
  app.add_option("--shutdown-grace-seconds", raw.shutdown_grace_seconds,
                 "How long running programs may go on after SIGTERM")
      ->check(whole_number(0, 86400))
      ->capture_default_str()
      ->group(group);
  app.add_option("--log-level", options.log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str()
      ->group(group);
}

void add_program_options(CLI::App& app, ServerOptions& options, RawOptions& raw) {
  const std::string group = "Programs";
  app.add_option("--python", options.python,
                 "Interpreter that runs programs, 3.10 or newer "
                 "[default: the first python3 on PATH that the sandbox user can run]")
      ->group(group);
  app.add_option(
         "--preload", raw.preload,
         "Modules imported once and shared by all programs, e.g. numpy,torch; none with '' [default: torch on a "
         "GPU server whose Python has it]")
      ->delimiter(',')
      ->group(group);
  app.add_option(
         "--max-requests-per-worker", options.runs_per_runtime,
         "How many programs one process serves before it is replaced; 0 for any number. With any value but 1, programs "
         "must trust one another: a fresh process for each is what isolates them")
      ->check(whole_number(0, 1'000'000'000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--standby-runtimes", options.standby,
                 "How many processes each worker keeps forked ahead of the programs that will run in them")
      ->check(whole_number(0, limits::kStandbyMax))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-memory-bytes", options.memory_bytes_max,
                 "Most memory that one program's processes may hold together, by default three quarters of the "
                 "machine's; 0 for as much as there is")
      ->check(whole_number(kMemoryBytesMin, kBytesMax, /*zero_too=*/true))
      ->capture_default_str()
      ->group(group);
  app.add_option("--env", raw.environment, "NAME=VALUE in every program's environment; may be repeated")->group(group);
  app.add_option("--expose", options.read_only_paths,
                 "A host path that programs may read at the same place, e.g. a model directory; may be repeated")
      ->check(CLI::ExistingPath)
      ->group(group);
  app.add_option("--sandbox-user", options.sandbox_user,
                 "Unprivileged user that programs run as when the server is root [default: kcoral if it exists, "
                 "else nobody in particular: a uid of its own for each worker]")
      ->group(group);
  app.add_option("--max-timeout-seconds", options.timeout_seconds_max, "Longest deadline that a program may ask for")
      ->check(CLI::Range(1.0, 7 * 86400.0))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-output-bytes", options.output_limit_bytes_max,
                 "Most bytes kept of each of stdout and stderr, whatever a program asks for")
      ->check(whole_number(0, kBytesMax))
      ->capture_default_str()
      ->group(group);
}

void add_history_options(CLI::App& app, RawOptions& raw) {
  const std::string group = "History";
  app.add_option("--history-days", raw.history_days,
                 "How long a request that has ended can be looked up, from its submission on; 0 for ever")
      ->check(whole_number(0, 36500))
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--artifact-capacity-bytes", raw.artifact_bytes_max,
         "Room for all answers together: beyond it the oldest are dropped (410), while their requests stay in the "
         "history; 0 for as much as the disk has")
      ->check(whole_number(limits::kMiB, kBytesMax, /*zero_too=*/true))
      ->capture_default_str()
      ->group(group);
}

void add_limit_options(CLI::App& app, ServerOptions& options, RawOptions& raw) {
  const std::string group = "Limits";
  app.add_option("--max-request-bytes", options.request_bytes_max, "Largest request body")
      ->check(whole_number(1024, kBytesMax))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-response-bytes", options.response_bytes_max, "Largest answer")
      ->check(whole_number(1024, kBytesMax))
      ->capture_default_str()
      ->group(group);
  app.add_option("--cache-capacity-bytes", options.blob_cache_bytes, "Memory for uploaded content that is kept hot")
      ->check(whole_number(0, kBytesMax))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-queued-requests", options.queued_requests_max,
                 "How many requests may wait; more are answered 503 and consume nothing")
      ->check(whole_number(1, 100'000'000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-queued-per-client", options.queued_requests_of_client_max,
                 "How many requests of one client may wait; more are answered 429 and consume nothing")
      ->check(whole_number(1, 100'000'000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--abandoned-after-seconds", raw.abandoned_after_seconds,
                 "How long a synchronous request goes on once nobody waits for it any more; 0 for to its end")
      ->check(whole_number(0, 86400))
      ->capture_default_str()
      ->group(group);
  app.add_option("--worker-wait-timeout-seconds", raw.worker_wait_seconds,
                 "How long a synchronous request may wait for a free worker")
      ->check(whole_number(1, 7 * 86400))
      ->capture_default_str()
      ->group(group);
  app.add_option("--lease-wait-timeout-seconds", raw.lease_wait_seconds,
                 "How long a program may wait for a GPU lease that others hold")
      ->check(whole_number(1, 7 * 86400))
      ->capture_default_str()
      ->group(group);
}

CLI::App* add_backup_command(CLI::App& app, BackupOptions& options) {
  CLI::App* backup = app.add_subcommand("backup",
                                        "Have a running server copy its data directory, as it is at one moment, while "
                                        "it goes on");
  backup->footer(kBackupFooter);
  backup->add_option("--data-dir", options.data_dir, "The server's")->capture_default_str();
  backup
      ->add_option("DIR", options.directory,
                   "Where to: nothing that exists, or an empty directory; on the server's machine, where its user may "
                   "write")
      ->required();
  return backup;
}

/// Set anew for each program, whatever the operator says.
bool is_managed(std::string_view name) {
  return name == "KCORAL_DIR" || name == "CUDA_VISIBLE_DEVICES" || name == "HOME" || name == "TMPDIR";
}

/// Throws CLI::ValidationError, which CLI11 turns into a message and an exit code.
void settle(const CLI::App& app, ServerOptions& options, const RawOptions& raw) {
  using DeviceMode = ServerOptions::DeviceMode;
  options.device = raw.device == "gpu" ? DeviceMode::kGpu : raw.device == "cpu" ? DeviceMode::kCpu : DeviceMode::kAuto;
  const std::set<int> gpus(raw.gpus.begin(), raw.gpus.end());
  if (gpus.size() != raw.gpus.size()) throw CLI::ValidationError("--gpus", "a GPU is named twice");
  if (options.device == DeviceMode::kCpu && !gpus.empty()) {
    throw CLI::ValidationError("--gpus", "a server with --device cpu has none");
  }
  options.gpus.assign(gpus.begin(), gpus.end());
  options.slots_given = app.get_option("--num-workers")->count() > 0;
  options.slots_per_gpu_given = app.get_option("--workers-per-gpu")->count() > 0;
  options.lease_wait = std::chrono::seconds(raw.lease_wait_seconds);
  if (app.get_option("--preload")->count() > 0) {
    options.preload.emplace();
    for (const std::string& module : raw.preload) {
      if (std::string name = CLI::detail::trim_copy(module); !name.empty()) options.preload->push_back(std::move(name));
    }
  }
  for (const std::string& assignment : raw.environment) {
    const size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw CLI::ValidationError("--env", "'" + assignment + "' is not NAME=VALUE");
    }
    const std::string name = assignment.substr(0, equals);
    if (is_managed(name)) throw CLI::ValidationError("--env", name + " is set by the server for each program");
    options.environment[name] = assignment.substr(equals + 1);
  }
  // It compares with nothing, so that its range lets it through.
  if (std::isnan(options.timeout_seconds_max)) throw CLI::ValidationError("--max-timeout-seconds", "nan is no number");
  options.worker_wait = std::chrono::seconds(raw.worker_wait_seconds);
  options.shutdown_grace = std::chrono::seconds(raw.shutdown_grace_seconds);
  const auto none_if_zero = [](uint64_t number) { return number > 0 ? std::optional(number) : std::nullopt; };
  options.abandoned_after.reset();
  if (const auto seconds = none_if_zero(raw.abandoned_after_seconds)) {
    options.abandoned_after = std::chrono::seconds(*seconds);
  }
  if (const auto days = none_if_zero(raw.history_days)) options.retention.history = std::chrono::hours(24 * *days);
  options.retention.artifact_bytes_max = none_if_zero(raw.artifact_bytes_max);
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine command;
  RawOptions raw;
  command.server.data_dir = default_data_dir();
  command.server.memory_bytes_max = memory_bytes() / 4 * 3;

  CLI::App app("kcoral runs self-contained experiments on shared machines.", "kcoral");
  app.set_version_flag("--version", "kcoral " KCORAL_VERSION);
  app.require_subcommand(1);
  CLI::App* server = app.add_subcommand("server",
                                        "Run the service: take programs over HTTP, run each in a fresh "
                                        "sandboxed process, keep every outcome");
  server->footer(kFooter);
  add_service_options(*server, command.server, raw);
  add_program_options(*server, command.server, raw);
  add_limit_options(*server, command.server, raw);
  add_history_options(*server, raw);
  add_config_options(*server, raw);
  BackupOptions backup_options;
  backup_options.data_dir = default_data_dir();
  const CLI::App* backup = add_backup_command(app, backup_options);
  try {
    app.parse(argc, argv);
    if (backup->parsed()) {
      command.backup = std::move(backup_options);
      return command;
    }
    if (!raw.config_path.empty()) read_config_file(*server, raw.config_path);
    settle(*server, command.server, raw);
    command.run_server = !raw.print_config;
    if (raw.print_config) command.text = print_config(*server, {argv, argv + argc}, raw.config_path);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream complaint;
    command.exit_code = app.exit(error, out, complaint) == 0 ? 0 : 2;
    command.text = out.str() + complaint.str();
  }
  return command;
}

}  // namespace kcoral::server
