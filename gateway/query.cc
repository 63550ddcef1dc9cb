#include "gateway/query.h"

#include <algorithm>

#include "gateway/ascii.h"
#include "schema/json_reader.h"

namespace kcoral::gateway {
namespace {

/// -1 for what is no hexadecimal digit.
int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = ascii_lower(c);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

bool is_unreserved(char c) {
  const char lower = ascii_lower(c);
  return is_digit(c) || (lower >= 'a' && lower <= 'z') || std::string_view("-._~").find(c) != std::string_view::npos;
}

std::optional<std::string> form_decode(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), '+', ' ');
  return percent_decode(spaced);
}

std::string accepted(std::initializer_list<std::string_view> known) {
  if (known.size() == 0) return "this path takes no query parameters";
  return fmt::format("this path takes {}", fmt::join(known, ", "));
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (!schema::is_valid_utf8(decoded)) return std::nullopt;
  return decoded;
}

std::string percent_encode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (is_unreserved(c)) {
      encoded += c;
    } else {
      fmt::format_to(std::back_inserter(encoded), "%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

Result<Query> Query::parse(std::string_view text, std::initializer_list<std::string_view> known) {
  Query query;
  while (!text.empty()) {
    const std::string_view pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(pair.size() + 1, text.size()));
    if (pair.empty()) continue;
    const size_t equals = std::min(pair.find('='), pair.size());
    auto name = form_decode(pair.substr(0, equals));
    auto value = form_decode(pair.substr(std::min(equals + 1, pair.size())));
    if (!name || !value) {
      return fail(ErrorKind::kParse, "the query \"{}\" is not percent-encoded UTF-8", pair.substr(0, 100));
    }
    if (std::find(known.begin(), known.end(), *name) == known.end()) {
      return fail(ErrorKind::kParse, "unknown query parameter \"{}\": {}",
                  schema::utf8_with_replacement(name->substr(0, 100)), accepted(known));
    }
    if (query.value(*name)) return fail(ErrorKind::kParse, "query parameter \"{}\" was sent twice", *name);
    query.parameters_.emplace_back(*std::move(name), *std::move(value));
  }
  return query;
}

std::optional<std::string_view> Query::value(std::string_view name) const {
  for (const auto& [known, value] : parameters_) {
    if (known == name) return value;
  }
  return std::nullopt;
}

}  // namespace kcoral::gateway
