// GET /health (contract section 8). Pure functions.
#pragma once

#include "gateway/gateway.h"
#include "schema/outcome.h"

namespace kcoral::gateway {

schema::Answer make_health_answer(const HealthFacts& facts);

}  // namespace kcoral::gateway
