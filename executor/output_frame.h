// How an executor shows the server what a program prints while it runs: an `output` frame (docs/frames.md). Plain
// values and functions.
#pragma once

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "executor/run_id.h"

namespace kcoral::executor {

enum class OutputStream { kStdout, kStderr };

/// As frames, audit records and people name it.
const char* name_of(OutputStream stream);

nlohmann::json output_frame(const RunId& run, OutputStream stream);

/// What `output_frame` put in; kEngine where the frame is malformed.
Result<OutputStream> output_stream_from(const nlohmann::json& body);

}  // namespace kcoral::executor
