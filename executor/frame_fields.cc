#include "executor/frame_fields.h"

#include <cmath>

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using nlohmann::json;

/// The field, or an error unless `is_expected` holds for it.
Result<const json*> field(const json& body, const char* name, bool (json::*is_expected)() const noexcept,
                          std::string_view expected) {
  if (!body.is_object()) return fail(ErrorKind::kEngine, "\"{}\" is sought in what is no object", name);
  const auto found = body.find(name);
  if (found == body.end()) return fail(ErrorKind::kEngine, "field \"{}\" is missing", name);
  if (!((*found).*is_expected)()) return fail(ErrorKind::kEngine, "field \"{}\" must be {}", name, expected);
  return &*found;
}

}  // namespace

Result<std::string> string_field(const json& body, const char* name) {
  auto found = field(body, name, &json::is_string, "a string");
  if (!found) return fail(found.error());
  return (*found)->get<std::string>();
}

Result<bool> boolean_field(const json& body, const char* name) {
  auto found = field(body, name, &json::is_boolean, "a boolean");
  if (!found) return fail(found.error());
  return (*found)->get<bool>();
}

Result<uint64_t> unsigned_field(const json& body, const char* name, uint64_t value_max) {
  auto found = field(body, name, &json::is_number_unsigned, "an integer from 0 up");
  if (!found) return fail(found.error());
  const auto value = (*found)->get<uint64_t>();
  if (value > value_max) return fail(ErrorKind::kEngine, "field \"{}\" is {}; at most {}", name, value, value_max);
  return value;
}

Result<int> integer_field(const json& body, const char* name) {
  auto found = field(body, name, &json::is_number_integer, "an integer");
  if (!found) return fail(found.error());
  return (*found)->get<int>();
}

Result<double> number_field(const json& body, const char* name) {
  auto found = field(body, name, &json::is_number, "a number");
  if (!found) return fail(found.error());
  const auto value = (*found)->get<double>();
  if (!std::isfinite(value)) return fail(ErrorKind::kEngine, "field \"{}\" must be finite", name);
  return value;
}

Result<Uuid> uuid_field(const json& body, const char* name) {
  auto text = string_field(body, name);
  if (!text) return fail(text.error());
  const auto id = Uuid::parse(*text);
  if (!id) return fail(ErrorKind::kEngine, "field \"{}\" must be a canonical UUID", name);
  return *id;
}

Result<std::vector<std::string>> strings_field(const json& body, const char* name) {
  auto found = field(body, name, &json::is_array, "an array of strings");
  if (!found) return fail(found.error());
  std::vector<std::string> strings;
  for (const json& element : **found) {
    if (!element.is_string()) return fail(ErrorKind::kEngine, "field \"{}\" must be an array of strings", name);
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

Result<std::vector<int>> device_ids_field(const json& body, const char* name) {
  auto found = field(body, name, &json::is_array, "an array of device ids");
  if (!found) return fail(found.error());
  std::vector<int> ids;
  for (const json& element : **found) {
    if (!element.is_number_unsigned() || element.get<uint64_t>() > limits::kDeviceIdMax) {
      return fail(ErrorKind::kEngine, "field \"{}\" must be an array of device ids", name);
    }
    ids.push_back(element.get<int>());
  }
  return ids;
}

Result<std::map<std::string, std::string>> string_map_field(const json& body, const char* name) {
  auto found = field(body, name, &json::is_object, "an object of strings");
  if (!found) return fail(found.error());
  std::map<std::string, std::string> strings;
  for (const auto& [key, value] : (*found)->items()) {
    if (!value.is_string()) return fail(ErrorKind::kEngine, "field \"{}\" must be an object of strings", name);
    strings[key] = value.get<std::string>();
  }
  return strings;
}

}  // namespace kcoral::executor
