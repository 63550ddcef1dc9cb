#include "schema/fields.h"

#include <algorithm>

#include "schema/limits.h"
#include "schema/utf8.h"

namespace kcoral::schema {
namespace {

constexpr size_t kQuotedBytesMax = 64;

/// Requires: `text` was checked with at most this depth already, so that only its type can surprise.
JsonReader reader_of(std::string_view text) { return {text, limits::kJsonDepthMax}; }

tl::unexpected<Error> refuse_type(const Field& field, JsonType wanted) {
  return refuse(field, fmt::format("must be {}, not {}", describe(wanted), describe(field.type)));
}

}  // namespace

std::string quote_short(std::string_view text) {
  // Cut before it is repaired, so that a long text costs nothing; a character cut in half is repaired away.
  if (text.size() <= kQuotedBytesMax) return json_text(text);
  std::string shown =
      json_quote(utf8_prefix(utf8_with_replacement(text.substr(0, 2 * kQuotedBytesMax)), kQuotedBytesMax));
  shown.insert(shown.size() - 1, "...");
  return shown;
}

tl::unexpected<Error> refuse(const Field& field, std::string_view why) {
  return fail(ErrorKind::kParse, "field {}: {}", quote_short(field.name), why);
}

Result<Field> take_field(JsonReader& reader, const std::string& name) {
  const auto type = reader.peek();
  if (!type) return fail(ErrorKind::kParse, "field {}: {}", quote_short(name), type.error().message);
  const auto text = reader.read_verbatim();
  if (!text) return fail(ErrorKind::kParse, "field {}: {}", quote_short(name), text.error().message);
  return Field{name, *type, *text};
}

Result<std::string> string_of(const Field& field) {
  if (field.type != JsonType::kString) return refuse_type(field, JsonType::kString);
  return reader_of(field.text).read_string();
}

Result<std::string> name_of(const Field& field) {
  auto name = string_of(field);
  if (!name) return name;
  if (name->empty()) return refuse(field, "must not be empty");
  if (name->size() > limits::kIdBytesMax) {
    return refuse(field, fmt::format("{} has {} bytes; at most {} are accepted", quote_short(*name), name->size(),
                                     limits::kIdBytesMax));
  }
  return name;
}

Result<bool> boolean_of(const Field& field) {
  if (field.type != JsonType::kBoolean) return refuse_type(field, JsonType::kBoolean);
  return field.text == "true";
}

Result<int64_t> integer_of(const Field& field, int64_t min, int64_t max) {
  if (field.type != JsonType::kInteger) return refuse_type(field, JsonType::kInteger);
  const auto value = integer_from(field.text);
  if (!value || *value < min || *value > max) {
    return refuse(field, fmt::format("must be an integer from {} to {}", min, max));
  }
  return *value;
}

Result<Digest> digest_of(const Field& field) {
  const auto hex = string_of(field);
  if (!hex) return fail(hex.error());
  const auto digest = Digest::parse(*hex);
  if (!digest) {
    return refuse(field, fmt::format("{} is no SHA-256 digest of 64 lowercase hexadecimal digits", quote_short(*hex)));
  }
  return *digest;
}

Result<std::string> reference_of(const Field& field) {
  if (field.type != JsonType::kObject) {
    return refuse(field, fmt::format("must be a reference {{\"$ref\": \"id\"}}, not {}", describe(field.type)));
  }
  auto id = reference_in(field.text);
  if (!id) return refuse(field, "must be a reference, an object of exactly the shape {\"$ref\": \"id\"}");
  return *std::move(id);
}

std::optional<std::string> reference_in(std::string_view object_text) {
  // Arguments may hold millions of objects, and few begin like a reference: {"$ref or an escape that may stand for it.
  const size_t quote = object_text.find_first_of("\"}");
  const std::string_view first_key = object_text.substr(std::min(quote + 1, object_text.size()));
  if (!first_key.starts_with('$') && !first_key.starts_with('\\')) return std::nullopt;

  JsonReader reader = reader_of(object_text);
  std::optional<std::string> id;
  const auto read = reader.read_object([&](const std::string& key) -> Status {
    const bool fits = key == "$ref" && !id && reader.peek() == JsonType::kString;
    if (!fits) return fail(ErrorKind::kParse, "not a reference");
    auto text = reader.read_string();
    if (!text) return fail(text.error());
    id = *std::move(text);
    return {};
  });
  return read ? id : std::nullopt;
}

}  // namespace kcoral::schema
