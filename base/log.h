// The process's log: one line an event on standard error, with a UTC time stamp. Thread-safe.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace kcoral {

/// Requires: called once, before the first line. `component` stands in every line ("server", "executor 3").
void start_log(const std::string& component);

}  // namespace kcoral
