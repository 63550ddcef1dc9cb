// What one program may use, as settings: the C++ side of struct kcoral_program_limits (sandbox/namespaces.h).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kcoral::executor {

/// 0 means that the kernel's own limit stays. The defaults are generous: they keep a mistake from taking the host down.
struct ProgramLimits {
  uint64_t work_bytes = 4ULL << 30;
  uint64_t tmp_bytes = 1ULL << 30;
  uint64_t shm_bytes = 1ULL << 30;
  uint64_t private_bytes = 256ULL << 20;
  uint64_t file_size_bytes = 16ULL << 30;
  uint64_t open_files = 65536;
  uint64_t processes = 4096;
  uint64_t cpu_seconds = 0;

  bool operator==(const ProgramLimits&) const = default;
};

/// An object with exactly the names of the members.
nlohmann::json to_json(const ProgramLimits& limits);
Result<ProgramLimits> program_limits_from(const nlohmann::json& object);

}  // namespace kcoral::executor
