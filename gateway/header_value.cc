#include "gateway/header_value.h"

#include "gateway/ascii.h"
#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

/// Consumes up to the `;` that ends a parameter, or to the end.
std::string_view take_bare(std::string_view& text) {
  const size_t end = std::min(text.find(';'), text.size());
  const std::string_view bare = trim_blanks(text.substr(0, end));
  text.remove_prefix(end);
  return bare;
}

enum class Quoting {
  kStandard,  // RFC 9110: a backslash makes the next character part of the string
  kLenient,   // backslashes stand for themselves, and a quote ends the string only where the parameter ends
};

struct Parameter {
  std::string name;                  // lowercase
  std::optional<std::string> value;  // nullopt if it is no quoted string although it begins like one
};

bool ends_parameter(std::string_view rest) {
  const size_t next = rest.find_first_not_of(" \t");
  return next == std::string_view::npos || rest[next] == ';';
}

/// Requires: `text` begins with a quote. Consumes the quoted string and whatever stands before the next `;`.
std::optional<std::string> take_quoted(std::string_view& text, Quoting quoting) {
  std::string unquoted;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      const bool at_end = ends_parameter(text.substr(i + 1));
      if (at_end || quoting == Quoting::kStandard) {
        text.remove_prefix(i + 1);
        take_bare(text);
        return at_end ? std::optional(std::move(unquoted)) : std::nullopt;
      }
    }
    if (quoting == Quoting::kStandard && text[i] == '\\' && i + 1 < text.size()) ++i;
    unquoted += text[i];
  }
  text = {};
  return std::nullopt;
}

/// `text` is empty or begins with the `;` after the value.
std::vector<Parameter> parse_parameters(std::string_view text, Quoting quoting) {
  std::vector<Parameter> parameters;
  while (!text.empty()) {
    text = trim_blanks(text.substr(1));  // the `;`
    const size_t name_end = text.find_first_of("=;");
    if (name_end == std::string_view::npos || text[name_end] == ';') {
      take_bare(text);
      continue;
    }
    std::string name = ascii_lowercase(trim_blanks(text.substr(0, name_end)));
    text = trim_blanks(text.substr(name_end + 1));
    const bool quoted = text.starts_with('"');
    parameters.push_back({std::move(name), quoted ? take_quoted(text, quoting) : std::string(take_bare(text))});
  }
  return parameters;
}

bool is_malformed(const Parameter& parameter) { return !parameter.value; }

}  // namespace

const std::string* HeaderValue::parameter(std::string_view lowercase_name) const {
  for (const auto& [name, parameter_value] : parameters) {
    if (name == lowercase_name) return &parameter_value;
  }
  return nullptr;
}

std::optional<HeaderValue> parse_header_value(std::string_view text) {
  HeaderValue parsed;
  parsed.value = ascii_lowercase(take_bare(text));
  if (parsed.value.empty()) return std::nullopt;
  for (Parameter& each : parse_parameters(text, Quoting::kStandard)) {
    if (parsed.parameters.size() == limits::kMediaTypeParametersMax) return std::nullopt;
    if (is_malformed(each) || parsed.parameter(each.name) != nullptr) return std::nullopt;
    parsed.parameters.emplace_back(std::move(each.name), *std::move(each.value));
  }
  return parsed;
}

std::optional<HeaderValue> parse_disposition(std::string_view text) {
  HeaderValue parsed;
  parsed.value = ascii_lowercase(take_bare(text));
  if (parsed.value.empty()) return std::nullopt;
  auto parameters = parse_parameters(text, Quoting::kStandard);
  if (std::any_of(parameters.begin(), parameters.end(), is_malformed)) {
    parameters = parse_parameters(text, Quoting::kLenient);
  }
  for (Parameter& each : parameters) {
    if (each.name != "name") continue;
    if (is_malformed(each) || !parsed.parameters.empty()) return std::nullopt;
    parsed.parameters.emplace_back(std::move(each.name), *std::move(each.value));
  }
  return parsed;
}

std::string media_type_of(std::string_view text) { return ascii_lowercase(take_bare(text)); }

}  // namespace kcoral::gateway
