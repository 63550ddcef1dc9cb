// The members of one JSON object, taken in any order and interpreted afterwards, with messages that name the field.
// Private to schema/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/sha256.h"
#include "schema/json_reader.h"

namespace kcoral::schema {

/// A member whose value is checked JSON that nobody has interpreted yet. The text outlives it.
struct Field {
  std::string name;
  JsonType type;
  std::string_view text;
};

/// Takes the value that the reader stands before as the field `name`.
Result<Field> take_field(JsonReader& reader, const std::string& name);

/// Each interprets a field as one type; errors are kParse and begin with `field "name": `.
Result<std::string> string_of(const Field& field);
/// An id, key or name: not empty and at most limits::kIdBytesMax bytes.
Result<std::string> name_of(const Field& field);
Result<bool> boolean_of(const Field& field);
/// Spelled as an integer, without fraction or exponent.
Result<int64_t> integer_of(const Field& field, int64_t min, int64_t max);
Result<Digest> digest_of(const Field& field);
/// The id in an object of exactly the shape {"$ref": "id"}.
Result<std::string> reference_of(const Field& field);

/// The id if `object_text`, a checked JSON object, has exactly the shape of a reference.
std::optional<std::string> reference_in(std::string_view object_text);

/// `field "name": why`.
tl::unexpected<Error> refuse(const Field& field, std::string_view why);

/// A piece of client text for a message: quoted, and shortened when it is long. Takes any bytes.
std::string quote_short(std::string_view text);

}  // namespace kcoral::schema
