#include "executor/program_limits.h"

#include <utility>

#include "executor/frame_fields.h"

namespace kcoral::executor {
namespace {

constexpr std::pair<const char*, uint64_t ProgramLimits::*> kMembers[] = {
    {"work_bytes", &ProgramLimits::work_bytes},
    {"tmp_bytes", &ProgramLimits::tmp_bytes},
    {"shm_bytes", &ProgramLimits::shm_bytes},
    {"private_bytes", &ProgramLimits::private_bytes},
    {"file_size_bytes", &ProgramLimits::file_size_bytes},
    {"open_files", &ProgramLimits::open_files},
    {"processes", &ProgramLimits::processes},
    {"cpu_seconds", &ProgramLimits::cpu_seconds},
};

}  // namespace

nlohmann::json to_json(const ProgramLimits& limits) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, member] : kMembers) object[name] = limits.*member;
  return object;
}

Result<ProgramLimits> program_limits_from(const nlohmann::json& object) {
  ProgramLimits limits;
  for (const auto& [name, member] : kMembers) {
    auto value = unsigned_field(object, name);
    if (!value) return fail(value.error());
    limits.*member = *value;
  }
  return limits;
}

}  // namespace kcoral::executor
