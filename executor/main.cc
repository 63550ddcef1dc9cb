// kcoral-executor: started by the server, with its end of their socket as descriptor 3. Everything else comes in
// frames.
#include <sys/resource.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/event_loop.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "executor/frame.h"
#include "executor/install_paths.h"
#include "executor/supervisor/supervisor.h"

namespace kcoral::executor {
namespace {

bool has_server() {
  int type = 0;
  socklen_t size = sizeof type;
  return ::getsockopt(kServerFd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/// The server decides when an executor ends: by closing the socket. A signal to the whole process group or service must
/// not take a running program away while the server still waits for it.
void leave_signals_to_the_server() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(number, SIG_IGN);
}

/// Blobs and returned values are descriptors: thousands of them in one run.
void allow_all_descriptors() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int run(const std::string& slot_name, const std::string& log_level) {
  start_log("executor " + slot_name);
  spdlog::set_level(spdlog::level::from_str(log_level));
  const auto failed = [](const Error& error) {
    spdlog::error("{}", error.message);
    return 1;
  };
  if (auto armed = arm_failpoints(std::getenv("KCORAL_FAILPOINT")); !armed) return failed(armed.error());
  leave_signals_to_the_server();
  allow_all_descriptors();
  auto executable = own_executable();
  if (!executable) return failed(executable.error());
  auto paths = find_install_paths(*executable);
  if (!paths) return failed(paths.error());
  auto loop = EventLoop::create();
  if (!loop) return failed(loop.error());
  auto supervisor = Supervisor::create(**loop, std::move(*paths), UniqueFd(kServerFd));
  if (!supervisor) return failed(supervisor.error());
  (*loop)->run();
  return 0;
}

}  // namespace
}  // namespace kcoral::executor

int main(int argc, char** argv) {
  if (argc != 3 || !kcoral::executor::has_server()) {
    std::fputs("kcoral-executor is started by the kcoral server, not by hand.\n", stderr);
    return 64;
  }
  return kcoral::executor::run(argv[1], argv[2]);
}
