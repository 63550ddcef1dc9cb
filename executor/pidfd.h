// Processes by descriptor: a number may have been given to another process meanwhile, a pidfd never is.
// (glibc 2.36 declares these calls for C only.)
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace kcoral::executor {

/// Close-on-exec; readable once the process has ended. Empty, with errno, when there is no such process.
inline UniqueFd open_pidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

/// A process that has ended already is no error to whoever wants it ended.
inline void signal_process(int pidfd, int signal) { ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0); }

}  // namespace kcoral::executor
