// The end of a run on its way from executor to server: `outcome_data` frames and one `outcome` frame (docs/frames.md).
// Encoding and decoding stand here together. Both sides trust each other, but a frame that does not fit is an error and
// never an exception.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/memfd.h"
#include "executor/executor.h"
#include "executor/frame_channel.h"
#include "executor/run_id.h"
#include "schema/outcome.h"

namespace kcoral::executor {

struct EncodedFrame {
  nlohmann::json body;
  std::vector<OutgoingFd> fds;
};

/// The report of `outcome`, with its answer's members rendered. `results_summary` as in RunReport.
Result<RunReport> make_report(const schema::Outcome& outcome, std::string results_summary);

/// Frames in the order in which they are sent.
Result<std::vector<EncodedFrame>> encode_report(const RunId& run, const RunReport& report);

/// Collects one run's frames; the caller has checked that they are about that run. Not thread-safe.
class ReportDecoder {
 public:
  Status on_outcome_data(Frame frame);
  /// Completes the report; the decoder is then as new.
  Result<RunReport> on_outcome(Frame frame);

 private:
  std::vector<std::shared_ptr<const SealedMemory>> data_;
};

}  // namespace kcoral::executor
