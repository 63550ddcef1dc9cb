// GET /gpus: what goes on on each device. Pure functions.
#pragma once

#include <vector>

#include "gateway/gateway.h"
#include "schema/outcome.h"

namespace kcoral::gateway {

schema::Answer make_gpus_answer(const std::vector<GpuFacts>& gpus);

}  // namespace kcoral::gateway
