// How the process's descriptors are shared out. Thread-safe.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

namespace kcoral::gateway {

/// `wanted`, but never more than one in `divisor` of the descriptors that the process may have now; at least 1.
inline size_t within_descriptors(size_t wanted, size_t divisor) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return wanted;
  return std::min<size_t>(wanted, std::max<size_t>(files.rlim_cur / divisor, 1));
}

}  // namespace kcoral::gateway
