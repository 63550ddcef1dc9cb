// Telling what passes (no memory, no descriptors, no process at this moment) from what an operator must mend.
//
// Our own errors and those of the programs that a slot consists of (bubblewrap, kcoral-init, Python) have one thing in
// common: they end in the system's own words for the error number. So those words are what is looked for, and the CUDA
// driver's about a device's memory.
#pragma once

#include <string_view>

#include "base/error.h"

namespace kcoral::executor {

/// Whether `message` says that something ran short which may come back by itself.
bool tells_of_shortage(std::string_view message);

/// Whether what failed with this while a slot was set up would fail again in the same way.
bool is_permanent(const Error& error);

}  // namespace kcoral::executor
