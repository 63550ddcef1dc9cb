// GET /metrics: what the server has counted, for Prometheus. Every name is here; README.md explains them. Pure
// functions.
#pragma once

#include <string>

#include "gateway/gateway.h"

namespace kcoral::gateway {

/// In the format of gateway/exposition.h.
std::string render_metrics(const MetricsFacts& facts);

}  // namespace kcoral::gateway
