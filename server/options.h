// What a command line asks for, and the server's settings as an operator gives them: flags, the environment variables
// of contract section 11, and a file.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "schema/limits.h"
#include "store/store.h"

namespace kcoral::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  enum class DeviceMode { kAuto, kCpu, kGpu };
  DeviceMode device = DeviceMode::kAuto;  // auto: a GPU server where there is a GPU
  std::vector<int> gpus;                  // as nvidia-smi numbers them; empty: all. Ascending.
  uint32_t slots_per_gpu = 8;
  std::chrono::seconds lease_wait = limits::kLeaseWait;
  uint32_t slots = 1;  // of a CPU server
  bool slots_given = false;
  bool slots_per_gpu_given = false;
  std::string data_dir;                             // never empty after parsing
  std::string python;                               // empty: look for one
  std::optional<std::vector<std::string>> preload;  // not given: PyTorch on a GPU server that has it, else nothing
  size_t standby = 1;
  uint64_t runs_per_runtime = 1;
  uint64_t memory_bytes_max = 0;  // of one program; 0: no bound of our own
  std::string sandbox_user;  // empty: "kcoral" if there is such a user, else "nobody"; only when the server is root
  std::map<std::string, std::string> environment;
  std::vector<std::string> read_only_paths;
  std::vector<std::string> allowed_hosts;

  uint64_t request_bytes_max = limits::kRequestBytesMax;
  uint64_t response_bytes_max = limits::kResponseBytesMax;
  uint64_t blob_cache_bytes = limits::kBlobCacheBytesDefault;
  uint64_t queued_requests_max = limits::kQueuedRequestsMax;
  uint64_t queued_requests_of_client_max = limits::kQueuedRequestsOfClientMax;
  std::optional<std::chrono::milliseconds> abandoned_after = limits::kAbandonedAfter;  // none: never
  store::RetentionBounds retention;
  double timeout_seconds_max = limits::kTimeoutSecondsMax;
  uint64_t output_limit_bytes_max = limits::kOutputLimitBytesMax;
  std::chrono::seconds worker_wait = limits::kWorkerWait;
  std::chrono::seconds shutdown_grace = limits::kShutdownGrace;
  std::string log_level = "info";
};

struct BackupOptions {
  std::string data_dir;   // of the server that is to make it; never empty after parsing
  std::string directory;  // which is to be made
};

/// What a command line asks for: to run the server, to have one make a backup, or only to print a text (help, version,
/// settings) and exit.
struct CommandLine {
  bool run_server = false;
  ServerOptions server;
  std::optional<BackupOptions> backup;
  std::string text;  // help, version or a complaint; for standard output when exit_code is 0, else standard error
  int exit_code = 0;
};

CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace kcoral::server
