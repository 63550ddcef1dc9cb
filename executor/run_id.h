// Which run a frame is about. Every word about a run carries its request and its attempt, so that one that comes late
// is never taken for a word about the next run of the same request (docs/frames.md).
#pragma once

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/uuid.h"

namespace kcoral::executor {

struct RunId {
  Uuid request_id;
  int attempt = 1;

  bool operator==(const RunId&) const = default;
};

/// A frame of this type about `run`, to which its other fields are added.
nlohmann::json frame_about(const RunId& run, const char* type);

/// What `frame_about` put in.
Result<RunId> run_id_from(const nlohmann::json& body);

}  // namespace kcoral::executor
