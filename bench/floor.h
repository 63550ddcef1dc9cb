// What the machine itself takes, measured in the same run as the service: no service can be faster than these.
#pragma once

#include <string>

#include "base/error.h"
#include "bench/samples.h"

namespace kcoral::bench {

/// Fork, new pid, mount and ipc namespaces, three tmpfs and /proc mounted, exit, wait: the life of an empty program.
/// As an unprivileged user in a user namespace of its own, like a slot.
Result<Series> measure_namespaces(int rounds);

/// Appending 4 KiB and fdatasync, in `directory`.
Result<Series> measure_sync(const std::string& directory, int rounds);

/// One byte there and one back over loopback TCP, between two threads.
Result<Series> measure_loopback(int rounds);

}  // namespace kcoral::bench
