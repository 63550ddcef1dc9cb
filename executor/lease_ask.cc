#include "executor/lease_ask.h"

#include <algorithm>
#include <utility>

#include "executor/frame_fields.h"

namespace kcoral::executor {
namespace {

constexpr const char* kProgram = "program";
constexpr const char* kContext = "context";

Result<LeasePurpose> purpose_from(const nlohmann::json& body) {
  auto name = string_field(body, "purpose");
  if (!name) return fail(name.error());
  if (*name == kProgram) return LeasePurpose::kProgram;
  if (*name == kContext) return LeasePurpose::kContext;
  return fail(ErrorKind::kEngine, "field \"purpose\" must be \"{}\" or \"{}\"", kProgram, kContext);
}

}  // namespace

nlohmann::json lease_request_frame(const LeaseAsk& ask) {
  return {{"type", "lease_request"},
          {"lease", ask.id},
          {"purpose", ask.for_program() ? kProgram : kContext},
          {"priority", ask.priority},
          {"devices", ask.devices},
          {"count", ask.devices.empty() ? ask.count : ask.devices.size()}};
}

Result<LeaseAsk> lease_ask_from(const nlohmann::json& body, const std::vector<int>& slot_devices) {
  LeaseAsk ask;
  auto id = unsigned_field(body, "lease");
  if (!id) return fail(id.error());
  ask.id = *id;
  auto purpose = purpose_from(body);
  if (!purpose) return fail(purpose.error());
  ask.purpose = *purpose;
  auto priority = integer_field(body, "priority");
  if (!priority) return fail(priority.error());
  ask.priority = *priority;
  auto devices = device_ids_field(body, "devices");
  if (!devices) return fail(devices.error());
  ask.devices = std::move(*devices);
  for (const int device : ask.devices) {
    if (std::find(slot_devices.begin(), slot_devices.end(), device) == slot_devices.end()) {
      return fail(ErrorKind::kEngine, "the slot has no device {}", device);
    }
  }
  auto count = unsigned_field(body, "count", slot_devices.size());
  if (!count) return fail(count.error());
  ask.count = *count;
  if (ask.count == 0) return fail(ErrorKind::kEngine, "lease {} is for nothing", ask.id);
  if (!ask.devices.empty() && ask.devices.size() != ask.count) {
    return fail(ErrorKind::kEngine, "lease {} names {} devices and counts {}", ask.id, ask.devices.size(), ask.count);
  }
  return ask;
}

}  // namespace kcoral::executor
