#include "executor/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "executor/pidfd.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

/// The first number above every one that the child is given.
int first_above(const ProcessSpec& spec) {
  int above = STDERR_FILENO + 1;
  for (const auto& [in_child, ours] : spec.fds) above = std::max(above, in_child + 1);
  return above;
}

/// `fd`, or a close-on-exec duplicate of it from `lowest` up, where no dup2 of the child overwrites it; -1, with errno.
int out_of_the_way(int fd, int lowest) { return fd >= lowest ? fd : ::fcntl(fd, F_DUPFD_CLOEXEC, lowest); }

/// What the child does between fork and exec. Only async-signal-safe calls: other threads may have held any lock.
/// Returns the name of the call that failed.
const char* prepare_child(const ProcessSpec& spec, std::vector<int>& sources, int lowest) {
  if (spec.own_session && ::setsid() < 0) return "setsid";
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &by_default, nullptr);
  sigset_t none;
  sigemptyset(&none);
  if (::sigprocmask(SIG_SETMASK, &none, nullptr) != 0) return "sigprocmask";
  for (size_t i = 0; i < sources.size(); ++i) {
    sources[i] = out_of_the_way(spec.fds[i].second, lowest);
    if (sources[i] < 0) return "fcntl";
  }
  // Libraries of the server may have opened descriptors that would be inherited.
  if (::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) != 0) return "close_range";
  for (size_t i = 0; i < sources.size(); ++i) {
    if (::dup2(sources[i], spec.fds[i].first) < 0) return "dup2";
  }
  if (spec.user) {
    if (::setgroups(0, nullptr) != 0) return "setgroups";
    if (::setresgid(spec.user->gid, spec.user->gid, spec.user->gid) != 0) return "setresgid";
    if (::setresuid(spec.user->uid, spec.user->uid, spec.user->uid) != 0) return "setresuid";
  }
  return nullptr;
}

struct StartFailure {
  int number;
  char call[24];
};

/// Returns only if it failed, with errno.
void execute(char* const* arguments, int open_program) {
  ::execv(arguments[0], arguments);
  // The path comes first, since a process that was executed by descriptor is named after its number.
  if (errno == EACCES && open_program >= 0) ::execveat(open_program, "", arguments, environ, AT_EMPTY_PATH);
}

[[noreturn]] void run_child(const ProcessSpec& spec, char* const* arguments, std::vector<int>& sources, int report) {
  // Close-on-exec, so that a successful exec reads as the end of the pipe.
  const int lowest = first_above(spec);
  const int moved = out_of_the_way(report, lowest);
  const int program = spec.open_program < 0 ? -1 : out_of_the_way(spec.open_program, lowest);
  const bool has_room = moved >= 0 && (program >= 0 || spec.open_program < 0);
  const char* failed = has_room ? prepare_child(spec, sources, lowest) : "fcntl";
  if (moved >= 0) report = moved;  // else nothing was overwritten yet, and the pipe is where it was
  if (failed == nullptr) {
    execute(arguments, program);
    failed = "execute";
  }
  StartFailure failure{errno, {}};
  std::strncpy(failure.call, failed, sizeof failure.call - 1);
  [[maybe_unused]] const ssize_t written = ::write(report, &failure, sizeof failure);
  ::_exit(127);
}

/// One stream of a captured run.
struct Capture {
  UniqueFd fd;
  std::string text;

  /// Reads once; closes at the end of the stream.
  void read_some() {
    std::array<char, 16384> buffer;
    const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
    if (size > 0) {
      text.append(buffer.data(), std::min(static_cast<size_t>(size), limits::kCapturedBytesMax - text.size()));
    } else if (size == 0 || (errno != EINTR && errno != EAGAIN)) {
      fd.reset();
    }
  }
};

}  // namespace

std::string describe(const ExitStatus& status) {
  if (!status.by_signal) return fmt::format("exit code {}", status.number);
  const char* name = ::sigabbrev_np(status.number);
  if (name == nullptr) return fmt::format("signal {}", status.number);
  return fmt::format("signal {} (SIG{})", status.number, name);
}

Result<ChildProcess> ChildProcess::start(const ProcessSpec& spec) {
  std::vector<char*> arguments;
  for (const std::string& argument : spec.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  std::vector<int> sources(spec.fds.size());
  std::array<int, 2> pipe;
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail_errno("pipe2");
  UniqueFd report_in(pipe[0]), report_out(pipe[1]);

  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fork");
  if (pid == 0) run_child(spec, arguments.data(), sources, report_out.get());
  UniqueFd pidfd = open_pidfd(pid);
  if (!pidfd) {
    const auto failure = fail_errno("pidfd_open");
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return failure;
  }
  ChildProcess child(pid, std::move(pidfd));
  report_out.reset();
  StartFailure failure;
  ssize_t size;
  do {
    size = ::read(report_in.get(), &failure, sizeof failure);
  } while (size < 0 && errno == EINTR);
  if (size == static_cast<ssize_t>(sizeof failure)) {
    return fail(ErrorKind::kEnvironment, "cannot start {}: {}: {}", spec.arguments[0], failure.call,
                std::strerror(failure.number));
  }
  return child;
}

ChildProcess::~ChildProcess() {
  if (!pidfd_ || status_) return;
  kill();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ChildProcess::kill() {
  if (!status_) signal_process(pidfd_.get(), SIGKILL);
}

std::optional<ExitStatus> ChildProcess::try_wait() {
  if (status_) return status_;
  int status;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  status_ = WIFSIGNALED(status) ? ExitStatus{true, WTERMSIG(status)} : ExitStatus{false, WEXITSTATUS(status)};
  return status_;
}

std::optional<ExitStatus> ChildProcess::wait_for(std::chrono::milliseconds wait_max) {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  while (::poll(&ended, 1, static_cast<int>(wait_max.count())) < 0 && errno == EINTR) {
  }
  return try_wait();
}

Result<CapturedRun> run_captured(ProcessSpec spec, std::chrono::milliseconds time_max) {
  std::array<int, 2> out_pipe, err_pipe;
  if (::pipe2(out_pipe.data(), O_CLOEXEC) != 0) return fail_errno("pipe2");
  Capture out{UniqueFd(out_pipe[0]), {}};
  UniqueFd out_end(out_pipe[1]);
  if (::pipe2(err_pipe.data(), O_CLOEXEC) != 0) return fail_errno("pipe2");
  Capture err{UniqueFd(err_pipe[0]), {}};
  UniqueFd err_end(err_pipe[1]);
  UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) return fail_errno("open", "/dev/null");
  spec.fds.insert(spec.fds.end(), {{0, nothing.get()}, {1, out_end.get()}, {2, err_end.get()}});
  auto child = ChildProcess::start(spec);
  if (!child) return fail(child.error());
  out_end.reset();
  err_end.reset();

  const SteadyTime end = Clock::system().now() + time_max;
  while (out.fd || err.fd) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::system().now());
    std::array<pollfd, 2> ready{{{out.fd.get(), POLLIN, 0}, {err.fd.get(), POLLIN, 0}}};
    if (left.count() <= 0 || ::poll(ready.data(), ready.size(), static_cast<int>(left.count())) == 0) {
      return fail(ErrorKind::kTimeout, "{} did not end within {} ms", spec.arguments[0], time_max.count());
    }
    if (ready[0].revents != 0) out.read_some();
    if (ready[1].revents != 0) err.read_some();
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::system().now());
  const auto status = child->wait_for(std::max(left, std::chrono::milliseconds(0)));
  if (!status) return fail(ErrorKind::kTimeout, "{} did not end within {} ms", spec.arguments[0], time_max.count());
  return CapturedRun{*status, std::move(out.text), std::move(err.text)};
}

}  // namespace kcoral::executor
