// What an executor asks the server for when it needs devices, and how that looks in a frame (docs/frames.md).
// Plain values and functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"

namespace kcoral::executor {

enum class LeasePurpose {
  kProgram,  // that of the program that runs
  kContext,  // to make or end a context, while no program needs the device
};

struct LeaseAsk {
  uint64_t id = 0;  // the executor's own number of it
  LeasePurpose purpose = LeasePurpose::kProgram;
  int priority = 0;          // higher first
  std::vector<int> devices;  // exactly these; empty: any
  size_t count = 1;          // how many, where any will do; else as many as are named

  bool for_program() const { return purpose == LeasePurpose::kProgram; }
};

nlohmann::json lease_request_frame(const LeaseAsk& ask);

/// Of a `lease_request` in a slot with those devices; kEngine where the frame is malformed, or asks for what such a
/// slot has not.
Result<LeaseAsk> lease_ask_from(const nlohmann::json& body, const std::vector<int>& slot_devices);

}  // namespace kcoral::executor
