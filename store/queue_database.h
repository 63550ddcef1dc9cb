// The tables of queue.sqlite3 and the way from an older form to this one.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "store/sqlite.h"

namespace kcoral::store {

/// The writer's connection, with all tables in their newest form and every later I/O error fatal. kEnvironment, in one
/// line, if the file is not ours or a newer kcoral wrote it.
Result<std::unique_ptr<Database>> open_queue_database(const std::string& path);

}  // namespace kcoral::store
