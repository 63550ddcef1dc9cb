// How much memory a program holds: its process and everything below it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace kcoral::executor {

/// Bytes of anonymous and shared memory (what no file on a disk holds) of `roots` and their descendants, from /proc.
/// What several of the processes share is counted once. Processes that end meanwhile, or that cannot be looked into,
/// count nothing.
///
/// Looking closely takes milliseconds for each gigabyte, so that is done only where a quick sum, which counts shared
/// pages for each process, is above `enough`; else the quick sum is the answer.
uint64_t memory_of(const std::vector<pid_t>& roots, uint64_t enough);

}  // namespace kcoral::executor
