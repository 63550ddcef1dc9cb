// Reading the fields of a frame or configuration without trusting its types: what is absent or of another type is an
// error that names the field, never an exception.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/uuid.h"

namespace kcoral::executor {

Result<std::string> string_field(const nlohmann::json& body, const char* name);
Result<bool> boolean_field(const nlohmann::json& body, const char* name);
/// An integer from 0 to `value_max`.
Result<uint64_t> unsigned_field(const nlohmann::json& body, const char* name,
                                uint64_t value_max = std::numeric_limits<uint64_t>::max());
/// An integer. Requires: an int holds it; our own processes send nothing else.
Result<int> integer_field(const nlohmann::json& body, const char* name);
/// A finite number; integers count.
Result<double> number_field(const nlohmann::json& body, const char* name);
Result<Uuid> uuid_field(const nlohmann::json& body, const char* name);
Result<std::vector<std::string>> strings_field(const nlohmann::json& body, const char* name);
/// A list of device ids.
Result<std::vector<int>> device_ids_field(const nlohmann::json& body, const char* name);
Result<std::map<std::string, std::string>> string_map_field(const nlohmann::json& body, const char* name);

}  // namespace kcoral::executor
