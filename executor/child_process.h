// Starting a program with exactly the descriptors that it is given, and knowing how it ended.
//
// A ChildProcess owns its process: destroying it kills and reaps. Ending goes by pidfd, so that a number that was
// reused is never hit. Not thread-safe; processes may be started from any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral::executor {

struct ExitStatus {
  bool by_signal = false;
  int number = 0;  // exit code or signal

  bool operator==(const ExitStatus&) const = default;
};

/// "exit code 3", "signal 11 (SIGSEGV)".
std::string describe(const ExitStatus& status);

struct ProcessSpec {
  std::vector<std::string> arguments;  // [0] is the path that is executed
  std::vector<std::pair<int, int>>
      fds;                   // (number in the child, our descriptor); all others are closed, 0 to 2 inherited
  bool own_session = false;  // out of reach of the terminal's Ctrl-C
  struct User {
    uid_t uid;
    gid_t gid;
  };
  std::optional<User> user;  // for good, without supplementary groups; needs root
  int open_program = -1;     // arguments[0], opened: executed where the user cannot reach that path; not inherited
};

class ChildProcess {
 public:
  /// kEnvironment when it cannot be executed.
  static Result<ChildProcess> start(const ProcessSpec& spec);
  ~ChildProcess();
  ChildProcess(ChildProcess&&) noexcept = default;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable once the process has ended.
  int pidfd() const { return pidfd_.get(); }
  void kill();
  /// Its status once it has ended.
  std::optional<ExitStatus> try_wait();
  /// Waits for its end; nullopt when it still runs after `wait_max`.
  std::optional<ExitStatus> wait_for(std::chrono::milliseconds wait_max);

 private:
  ChildProcess(pid_t pid, UniqueFd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}

  pid_t pid_;
  UniqueFd pidfd_;
  std::optional<ExitStatus> status_;
};

struct CapturedRun {
  ExitStatus status;
  std::string out;  // standard output, at most limits::kCapturedBytesMax
  std::string err;  // standard error, likewise
};

/// Runs a program to its end with empty input; kTimeout when it takes longer than `time_max` (it is killed then).
Result<CapturedRun> run_captured(ProcessSpec spec, std::chrono::milliseconds time_max);

}  // namespace kcoral::executor
