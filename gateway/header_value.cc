#include "gateway/header_value.h"

#include "gateway/ascii.h"

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
  kLenient,   // the string ends with a quote after which the parameter ends; without one it takes the rest
};

bool ends_parameter(std::string_view rest) {
  rest = trim_blanks(rest);
  return rest.empty() || rest.front() == ';';
}

/// Requires: `text` begins with a quote. Consumes the quoted string and the white space before the next `;`; nullopt if
/// it is not one.
std::optional<std::string> take_quoted(std::string_view& text, Quoting quoting) {
  std::string unquoted;
  for (size_t i = 1; i < text.size(); ++i) {
    const bool at_end = ends_parameter(text.substr(i + 1));
    if (text[i] == '"' && (at_end || quoting == Quoting::kStandard)) {
      text.remove_prefix(i + 1);
      take_bare(text);
      return at_end ? std::optional(unquoted) : std::nullopt;
    }
    if (quoting == Quoting::kStandard && text[i] == '\\' && i + 1 < text.size()) ++i;
    unquoted += text[i];
  }
  text = {};
  return std::nullopt;
}

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
  while (!text.empty()) {
    text = trim_blanks(text.substr(1));  // the `;`
    const size_t name_end = text.find_first_of("=;");
    if (name_end == std::string_view::npos || text[name_end] == ';') {
      take_bare(text);
      continue;
    }
    std::string name = ascii_lowercase(trim_blanks(text.substr(0, name_end)));
    if (parsed.parameter(name) != nullptr) return std::nullopt;
    text = trim_blanks(text.substr(name_end + 1));
    if (!text.empty() && text.front() == '"') {
      auto unquoted = take_quoted(text);
      if (!unquoted) return std::nullopt;
      parsed.parameters.emplace_back(std::move(name), std::move(*unquoted));
    } else {
      parsed.parameters.emplace_back(std::move(name), take_bare(text));
    }
  }
  return parsed;
}

}  // namespace kcoral::gateway
