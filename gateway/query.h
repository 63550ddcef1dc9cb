// The query of a request target: names and values, percent-decoded. Pure functions and plain values.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace kcoral::gateway {

/// nullopt for a '%' without two hexadecimal digits behind it, and for what is not UTF-8 once it is decoded.
std::optional<std::string> percent_decode(std::string_view text);

/// `text` as one segment of a path: all but letters, digits and "-._~" becomes %XX.
std::string percent_encode(std::string_view text);

class Query {
 public:
  /// As forms are encoded, so that a '+' is a space. Errors are kParse: a name that is not `known`, a name that stands
  /// there twice, what cannot be decoded. A name without '=' has the empty value.
  static Result<Query> parse(std::string_view text, std::initializer_list<std::string_view> known);

  /// nullopt if it is not there.
  std::optional<std::string_view> value(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, std::string>> parameters_;
};

}  // namespace kcoral::gateway
