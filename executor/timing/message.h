// Messages for people in buffers of a fixed size, and the outcome of a step that may fail.
//
// As in the rest of this library: no exceptions, no allocation, nothing of libstdc++ but what headers hold.
#pragma once

#include <cstddef>

#include "executor/timing/timing.h"

namespace kcoral::timing {

/// KCORAL_TIMING_OK, or a status with a message. The first failure stays: later ones do not overwrite its reason.
class Outcome {
 public:
  /// Notes a failure unless there is one already. Returns false, for `return outcome.fail(...)`.
  bool fail(kcoral_timing_status status, const char* format, ...) __attribute__((format(printf, 3, 4)));

  bool ok() const { return status_ == KCORAL_TIMING_OK; }
  kcoral_timing_status status() const { return status_; }
  const char* message() const { return message_; }
  void clear();

  /// For the C interface: copies the message, returns the status.
  int give(char* error, size_t error_size) const;

 private:
  static constexpr size_t kMessageBytes = 1024;
  kcoral_timing_status status_ = KCORAL_TIMING_OK;
  char message_[kMessageBytes] = {};
};

/// Copies as much as there is room for, and always ends with a zero.
void copy_text(char* target, size_t target_size, const char* text);

}  // namespace kcoral::timing
