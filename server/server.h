// The only place where the parts meet: gateway → store → scheduler → executor → store → gateway.
#pragma once

#include "server/options.h"

namespace kcoral::server {

/// Runs the service until SIGTERM or SIGINT ends it; the exit code. 0: stopped as asked, with everything that was
/// accepted kept. 1: it could not start, and one line on standard error says why. Requires: no other thread runs yet,
/// since signals are blocked for all that follow.
int run_server(const ServerOptions& options);

}  // namespace kcoral::server
