// Pistache's request parser as a function. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace kcoral::gateway {

/// A request target without its query. Requires: visible ASCII only, beginning with '/' (or "*").
///
/// Pistache sees a head without any header. It would parse known ones into types, and throws where a client sends a
/// value that it does not know (Accept, Connection, Cookie, Encoding); it would also make room for a whole
/// Content-Length.
Result<std::string> path_of_target(std::string_view target);

}  // namespace kcoral::gateway
