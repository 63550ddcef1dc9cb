// Header values of the form `value; name=token; name="quoted string"`: Content-Type and a part's Content-Disposition.
// Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kcoral::gateway {

struct HeaderValue {
  std::string value;                                            // lowercase
  std::vector<std::pair<std::string, std::string>> parameters;  // lowercase names, values as sent and unquoted

  /// nullptr if there is none.
  const std::string* parameter(std::string_view lowercase_name) const;
};

/// nullopt for an empty value, an unfinished quoted string, a doubled parameter or more than
/// limits::kMediaTypeParametersMax. A parameter without `=` is ignored.
std::optional<HeaderValue> parse_header_value(std::string_view text);

/// A part's Content-Disposition, of which only `name` counts and is kept: what clients do in a file's name differs.
/// Browsers send a backslash as it is, so that it may stand before the closing quote; others escape with it.
/// nullopt for an empty value, an unfinished or doubled `name`.
std::optional<HeaderValue> parse_disposition(std::string_view text);

/// What stands before the parameters, in lowercase.
std::string media_type_of(std::string_view text);

}  // namespace kcoral::gateway
