// The executors of an earlier server on the same data directory: nothing new starts before every one of them is gone.
#pragma once

#include <chrono>
#include <string>

#include "base/error.h"

namespace kcoral::server {

/// The file that the executor of a slot holds locked while it lives.
std::string executor_lock_path(const std::string& data_dir, uint32_t slot);

/// Makes the directory of the lock files and waits until none of those in it is held. Says in the log what it waits
/// for; kEnvironment when one is still held after `limit`, or once the descriptor `interrupt` becomes readable.
Status wait_for_old_executors(const std::string& data_dir, std::chrono::seconds limit, int interrupt);

}  // namespace kcoral::server
