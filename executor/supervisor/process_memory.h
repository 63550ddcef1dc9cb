// How much memory a program holds: its process and everything below it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace kcoral::executor {

/// Bytes of anonymous and shared memory, swapped out or not, that `roots` and their descendants have mapped and
/// touched, from /proc. What several of the processes share is counted once, memory files and files in tmpfs that
/// nobody maps not at all. Processes that end meanwhile count nothing.
///
/// Looking closely takes milliseconds for each gigabyte. So a quick sum comes first, in which shared pages count for
/// each process, and processes are looked at closely, the largest first, only until it is clear on which side of
/// `enough` the sum lies. The processes go on meanwhile, so a sum above it means something only where it comes again.
uint64_t memory_of(const std::vector<pid_t>& roots, uint64_t enough);

/// Whether this kernel tells of descendants (CONFIG_PROC_CHILDREN); else only `roots` themselves are counted.
bool descendants_are_told();

}  // namespace kcoral::executor
