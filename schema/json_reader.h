// A strict pull parser over a JSON text that keeps what a tree would lose: the exact spelling of numbers, the order of
// members, and doubled keys (which it refuses).
//
// It exists beside nlohmann/json because that library turns integers beyond 64 bits into doubles, refuses integers
// beyond the range of a double, merges doubled keys, and cannot say where a value stood in the text. What kcoral writes
// itself is built with nlohmann/json; what clients and runtimes send goes through here.
//
// Accepted: RFC 8259 in UTF-8 without a byte order mark; no NaN or Infinity; numbers finite once parsed as a double
// unless they are integers; no unpaired surrogate escapes; no doubled keys in an object; nesting at most `depth_max`.
// Not thread-safe; the text must outlive the reader.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace kcoral::schema {

enum class JsonType { kNull, kBoolean, kInteger, kNumber, kString, kArray, kObject };

/// "null", "a boolean", "an integer", "a number", "a string", "an array", "an object".
std::string_view describe(JsonType type);

class JsonReader {
 public:
  JsonReader(std::string_view text, int depth_max) : text_(text), depth_max_(depth_max) {}

  /// The type of the next value, without consuming it. Requires nothing; errors are kParse with a byte offset.
  Result<JsonType> peek();

  /// Each consumes one value of that type; another type or a malformed text is an error.
  Status read_null();
  Result<bool> read_boolean();
  Result<std::string> read_string();
  /// An integer's or number's exact spelling, e.g. "-0", "12e3", "123456789012345678901234567890".
  Result<std::string_view> read_number_text();
  /// Calls `member` with each key in order; it must consume exactly the member's value. A doubled key is refused at the
  /// latest at the end of the object: `member` may have seen it.
  Status read_object(const std::function<Status(const std::string& key)>& member);
  /// Calls `element` with each index; it must consume exactly the element.
  Status read_array(const std::function<Status(size_t index)>& element);
  /// Checks an array throughout and calls `object` with the index and the verbatim text of each element that is an
  /// object: many times faster than `read_array` where most elements are of no interest.
  Status check_array(const std::function<Status(size_t index, std::string_view text)>& object);
  /// Checks one value of any type throughout and returns its verbatim text, without surrounding white space.
  Result<std::string_view> read_verbatim();

  /// Succeeds if nothing but white space is left.
  Status expect_end();

  size_t offset() const { return offset_; }

 private:
  struct RawString {
    std::string_view content;  // between the quotes, as spelled; valid
    bool has_escapes = false;
  };
  struct RawNumber {
    std::string_view text;
    bool is_integer = false;
  };

  // What scans answers false once the reason stands in `failure_`: a Result for each number would cost more than the
  // number.
  bool reject(std::string_view what);
  bool reject_type(std::string_view wanted);
  Status status(bool is_read);
  /// Whether a callback succeeded; keeps its error.
  bool keep(Status status);
  /// White space, then the next byte without consuming it; '\0' at the end, which begins nothing in JSON.
  char next();
  bool peek_type(JsonType& type);

  bool read_literal(std::string_view literal);
  bool scan_string(RawString& raw);
  bool scan_escape();
  bool scan_number(RawNumber& number);
  bool skip_value();

  bool read_key();  // appends to keys_
  bool check_new_key(size_t first_key);
  bool check_all_keys(size_t first_key);
  bool close_object(size_t first_key, size_t unescaped_before);
  bool enter();
  template <typename Member>
  bool walk_object(Member member);
  template <typename Element>
  bool walk_array(Element element);

  std::string_view text_;
  int depth_max_;
  int depth_ = 0;
  size_t offset_ = 0;
  Error failure_{ErrorKind::kParse, {}};
  std::vector<std::string_view> keys_;     // of all objects that are open, the innermost object's last
  std::list<std::string> unescaped_keys_;  // what `keys_` refers to where the text spells a key with escapes
};

/// Parses the decimal spelling of an integer; nullopt when it has a fraction or exponent or does not fit.
std::optional<int64_t> integer_from(std::string_view number_text);

/// The nearest double of a valid JSON number; nullopt when it is not finite (1e400). Does not depend on the locale.
std::optional<double> number_from(std::string_view number_text);

/// `text` as a JSON string literal with its quotes; control characters escaped, the rest verbatim UTF-8.
/// Requires: valid UTF-8.
std::string json_quote(std::string_view text);
/// The same of any bytes.
std::string json_text(std::string_view bytes);

/// Bytes of a program's output as valid UTF-8: what is malformed becomes U+FFFD (one for each maximal ill-formed
/// subsequence, as Unicode recommends and Python's "replace" does).
std::string utf8_with_replacement(std::string_view bytes);

/// How many bytes at the end are the beginning of a character that more bytes may complete: 0 to 3. What stands before
/// them decodes as it will once more has come.
size_t utf8_incomplete_tail(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

}  // namespace kcoral::schema
