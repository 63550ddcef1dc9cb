// Which processes of a server the CPU time goes to.
#pragma once

#include <sys/types.h>

#include "base/error.h"

namespace kcoral::bench {

/// Milliseconds of CPU time (user and system) since they started, to the kernel's clock tick of 10 ms.
struct CpuTimes {
  double server_ms = 0;
  double executors_ms = 0;
  double runtimes_ms = 0;  // sandboxes with their zygotes and all that ran in them, ended processes included
};

/// Of a server and its descendants, from /proc.
Result<CpuTimes> cpu_times_of(pid_t server);

}  // namespace kcoral::bench
