#include "schema/json_reader.h"

#include <algorithm>
#include <charconv>

#include "schema/utf8.h"

namespace kcoral::schema {
namespace {

/// Up to here a new key is compared with each one before it; the keys of larger objects are sorted once, at their end.
/// No hash table: nobody can choose keys that make sorting slow.
constexpr size_t kKeysComparedMax = 16;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// The four hexadecimal digits at the start of `text`; -1 if there are none.
int code_unit(std::string_view text) {
  if (text.size() < 4) return -1;
  int unit = 0;
  for (size_t i = 0; i < 4; ++i) {
    const int value = hex_value(text[i]);
    if (value < 0) return -1;
    unit = unit * 16 + value;
  }
  return unit;
}

std::string quote_key(std::string_view key) { return json_quote(utf8_prefix(key, 64)); }

bool is_high_surrogate(int unit) { return unit >= 0xD800 && unit <= 0xDBFF; }
bool is_low_surrogate(int unit) { return unit >= 0xDC00 && unit <= 0xDFFF; }

void append_utf8(std::string& text, uint32_t code_point) {
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | (code_point >> 6));
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | (code_point >> 12));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | (code_point >> 18));
    add(0x80 | ((code_point >> 12) & 0x3F));
    add(0x80 | ((code_point >> 6) & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

char simple_escape(char letter) {
  switch (letter) {
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    default:
      return letter;  // quote, backslash, slash
  }
}

/// Requires: `raw` was scanned, so every escape in it is valid.
std::string unescape(std::string_view raw) {
  std::string text;
  text.reserve(raw.size());
  size_t at = 0;
  while (at < raw.size()) {
    const size_t backslash = std::min(raw.find('\\', at), raw.size());
    text.append(raw, at, backslash - at);
    if (backslash == raw.size()) break;
    at = backslash + 2;
    if (raw[backslash + 1] != 'u') {
      text += simple_escape(raw[backslash + 1]);
      continue;
    }
    auto code_point = static_cast<uint32_t>(code_unit(raw.substr(at)));
    at += 4;
    if (is_high_surrogate(static_cast<int>(code_point))) {
      const auto low = static_cast<uint32_t>(code_unit(raw.substr(at + 2)));
      code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
      at += 6;
    }
    append_utf8(text, code_point);
  }
  return text;
}

/// The power of ten of a number's first significant digit (3 for 1234.5, -3 for 0.0012); nullopt for zero. An exponent
/// too long to count reads as a very large one.
std::optional<int64_t> decimal_magnitude(std::string_view number) {
  constexpr int64_t kHuge = 100'000'000'000'000'000;  // ten times it still fits
  const size_t mantissa_end = std::min(number.find_first_of("eE"), number.size());
  const std::string_view mantissa = number.substr(0, mantissa_end);
  const size_t point = std::min(mantissa.find('.'), mantissa.size());
  const size_t first = mantissa.find_first_of("123456789");
  if (first == std::string_view::npos) return std::nullopt;
  int64_t magnitude = static_cast<int64_t>(point) - static_cast<int64_t>(first);
  if (first < point) --magnitude;
  if (mantissa_end == number.size()) return magnitude;

  std::string_view digits = number.substr(mantissa_end + 1);
  const bool is_negative = digits.front() == '-';
  if (!is_digit(digits.front())) digits.remove_prefix(1);
  int64_t exponent = 0;
  for (const char digit : digits) exponent = std::min(kHuge, exponent * 10 + (digit - '0'));
  return magnitude + (is_negative ? -exponent : exponent);
}

constexpr int64_t kMagnitudeMax = 308;  // the largest double is 1.797...e308

/// Most numbers are far from the limit. `exponent_digits` is 0 for a number without an exponent.
bool is_surely_finite(std::string_view number, size_t exponent_digits) {
  return number.size() < kMagnitudeMax - 100 && exponent_digits <= 2;
}

/// Converts only where nothing else can decide.
bool is_finite(std::string_view number) {
  const auto magnitude = decimal_magnitude(number);
  if (!magnitude || *magnitude < kMagnitudeMax) return true;
  if (*magnitude > kMagnitudeMax) return false;
  double value;
  return std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc();
}

}  // namespace

std::string_view describe(JsonType type) {
  switch (type) {
    case JsonType::kNull:
      return "null";
    case JsonType::kBoolean:
      return "a boolean";
    case JsonType::kInteger:
      return "an integer";
    case JsonType::kNumber:
      return "a number";
    case JsonType::kString:
      return "a string";
    case JsonType::kArray:
      return "an array";
    case JsonType::kObject:
      return "an object";
  }
  return "a value";
}

bool JsonReader::reject(std::string_view what) {
  failure_ = Error{ErrorKind::kParse, fmt::format("byte {}: {}", offset_, what)};
  return false;
}

bool JsonReader::reject_type(std::string_view wanted) {
  JsonType found;
  if (!peek_type(found)) return false;
  return reject(fmt::format("expected {}, found {}", wanted, describe(found)));
}

Status JsonReader::status(bool is_read) {
  if (is_read) return {};
  return fail(failure_);
}

bool JsonReader::keep(Status status) {
  if (!status) failure_ = std::move(status.error());
  return status.has_value();
}

inline char JsonReader::next() {
  while (offset_ < text_.size()) {
    const char c = text_[offset_];
    if (c > ' ' || (c != ' ' && c != '\n' && c != '\r' && c != '\t')) return c;
    ++offset_;
  }
  return '\0';
}

Result<JsonType> JsonReader::peek() {
  JsonType type;
  if (!peek_type(type)) return fail(failure_);
  return type;
}

bool JsonReader::peek_type(JsonType& type) {
  const char c = next();
  switch (c) {
    case '{':
      type = JsonType::kObject;
      return true;
    case '[':
      type = JsonType::kArray;
      return true;
    case '"':
      type = JsonType::kString;
      return true;
    case 't':
    case 'f':
      type = JsonType::kBoolean;
      return true;
    case 'n':
      type = JsonType::kNull;
      return true;
    default:
      break;
  }
  if (c == '-' || is_digit(c)) {
    const size_t start = offset_;
    RawNumber number;
    if (!scan_number(number)) return false;
    offset_ = start;
    type = number.is_integer ? JsonType::kInteger : JsonType::kNumber;
    return true;
  }
  if (offset_ == text_.size()) return reject("expected a value, found the end of the text");
  if (offset_ == 0 && text_.starts_with("\xEF\xBB\xBF")) return reject("a byte order mark is not accepted");
  return reject("expected a value");
}

bool JsonReader::read_literal(std::string_view literal) {
  if (!text_.substr(offset_).starts_with(literal)) return reject("expected a value");
  offset_ += literal.size();
  return true;
}

Status JsonReader::read_null() {
  if (next() != 'n') return status(reject_type(describe(JsonType::kNull)));
  return status(read_literal("null"));
}

Result<bool> JsonReader::read_boolean() {
  const char c = next();
  const bool is_read = c == 't'   ? read_literal("true")
                       : c == 'f' ? read_literal("false")
                                  : reject_type(describe(JsonType::kBoolean));
  if (!is_read) return fail(failure_);
  return c == 't';
}

Result<std::string> JsonReader::read_string() {
  RawString raw;
  const bool is_read = next() == '"' ? scan_string(raw) : reject_type(describe(JsonType::kString));
  if (!is_read) return fail(failure_);
  return raw.has_escapes ? unescape(raw.content) : std::string(raw.content);
}

Result<std::string_view> JsonReader::read_number_text() {
  const char c = next();
  RawNumber number;
  const bool is_read = c == '-' || is_digit(c) ? scan_number(number) : reject_type(describe(JsonType::kNumber));
  if (!is_read) return fail(failure_);
  return number.text;
}

bool JsonReader::scan_string(RawString& raw) {
  const size_t start = ++offset_;
  while (true) {
    offset_ += string_run(text_, offset_);
    if (offset_ == text_.size()) return reject("the text ends inside a string");
    const char c = text_[offset_];
    if (c == '"') {
      raw.content = text_.substr(start, offset_ - start);
      ++offset_;
      return true;
    }
    if (c != '\\') {
      return reject(static_cast<uint8_t>(c) < 0x20 ? "a control character in a string must be escaped" : "not UTF-8");
    }
    raw.has_escapes = true;
    if (!scan_escape()) return false;
  }
}

bool JsonReader::scan_escape() {
  const std::string_view rest = text_.substr(offset_ + 1);
  if (rest.empty()) return reject("the text ends inside a string");
  if (rest.front() != 'u') {
    if (std::string_view("\"\\/bfnrt").find(rest.front()) == std::string_view::npos) return reject("unknown escape");
    offset_ += 2;
    return true;
  }
  const int unit = code_unit(rest.substr(1));
  if (unit < 0) return reject("\\u needs four hexadecimal digits");
  if (!is_high_surrogate(unit) && !is_low_surrogate(unit)) {
    offset_ += 6;
    return true;
  }
  const std::string_view second = text_.substr(std::min(offset_ + 6, text_.size()));
  const bool is_pair =
      is_high_surrogate(unit) && second.starts_with("\\u") && is_low_surrogate(code_unit(second.substr(2)));
  if (!is_pair) return reject("an unpaired surrogate escape is no character");
  offset_ += 12;
  return true;
}

bool JsonReader::scan_number(RawNumber& number) {
  const size_t start = offset_;
  const auto at = [this] { return offset_ < text_.size() ? text_[offset_] : '\0'; };
  const auto skip_digits = [&] {
    const size_t before = offset_;
    while (is_digit(at())) ++offset_;
    return offset_ - before;
  };
  if (at() == '-') ++offset_;
  if (at() == '0') {
    ++offset_;
    if (is_digit(at())) return reject("a number must not have leading zeros");
  } else if (skip_digits() == 0) {
    return reject("a number needs a digit here");
  }
  number.is_integer = true;
  size_t exponent_digits = 0;
  if (at() == '.') {
    number.is_integer = false;
    ++offset_;
    if (skip_digits() == 0) return reject("a number needs a digit after its point");
  }
  if (at() == 'e' || at() == 'E') {
    number.is_integer = false;
    ++offset_;
    if (at() == '+' || at() == '-') ++offset_;
    exponent_digits = skip_digits();
    if (exponent_digits == 0) return reject("a number needs a digit in its exponent");
  }
  number.text = text_.substr(start, offset_ - start);
  if (number.is_integer || is_surely_finite(number.text, exponent_digits) || is_finite(number.text)) return true;
  offset_ = start;
  return reject("a number must be finite as a double");
}

bool JsonReader::enter() {
  if (depth_ == depth_max_) return reject(fmt::format("nested more than {} deep", depth_max_));
  ++depth_;
  ++offset_;
  return true;
}

bool JsonReader::read_key() {
  if (next() != '"') return reject("expected a key, which is a string");
  RawString raw;
  if (!scan_string(raw)) return false;
  keys_.push_back(raw.has_escapes ? unescaped_keys_.emplace_back(unescape(raw.content)) : raw.content);
  return true;
}

/// Requires: the new key is the last of `keys_`.
bool JsonReader::check_new_key(size_t first_key) {
  const size_t last = keys_.size() - 1;
  if (last - first_key >= kKeysComparedMax) return true;
  for (size_t i = first_key; i < last; ++i) {
    if (keys_[i] == keys_[last]) return reject(fmt::format("the key {} is doubled", quote_key(keys_[last])));
  }
  return true;
}

bool JsonReader::check_all_keys(size_t first_key) {
  const auto first = keys_.begin() + static_cast<ptrdiff_t>(first_key);
  std::vector<size_t> hashes(keys_.size() - first_key);
  std::transform(first, keys_.end(), hashes.begin(), std::hash<std::string_view>());
  std::sort(hashes.begin(), hashes.end());
  if (std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end()) return true;
  // Equal keys, or keys whose hashes were made to be equal: only the keys themselves can tell.
  std::sort(first, keys_.end());
  const auto doubled = std::adjacent_find(first, keys_.end());
  if (doubled == keys_.end()) return true;
  return reject(fmt::format("the object that ends here has the key {} doubled", quote_key(*doubled)));
}

bool JsonReader::close_object(size_t first_key, size_t unescaped_before) {
  if (keys_.size() - first_key > kKeysComparedMax && !check_all_keys(first_key)) return false;
  keys_.resize(first_key);
  while (unescaped_keys_.size() > unescaped_before) unescaped_keys_.pop_back();
  --depth_;
  ++offset_;
  return true;
}

template <typename Member>
bool JsonReader::walk_object(Member member) {
  if (!enter()) return false;
  const size_t first_key = keys_.size();
  const size_t unescaped_before = unescaped_keys_.size();
  if (next() == '}') return close_object(first_key, unescaped_before);
  while (true) {
    if (!read_key() || !check_new_key(first_key)) return false;
    if (next() != ':') return reject("expected ':' after a key");
    ++offset_;
    if (!member(keys_.back())) return false;
    const char c = next();
    if (c == '}') return close_object(first_key, unescaped_before);
    if (c != ',') return reject("expected ',' or '}'");
    ++offset_;
  }
}

template <typename Element>
bool JsonReader::walk_array(Element element) {
  if (!enter()) return false;
  if (next() != ']') {
    for (size_t index = 0;; ++index) {
      if (!element(index)) return false;
      const char c = next();
      if (c == ']') break;
      if (c != ',') return reject("expected ',' or ']'");
      ++offset_;
    }
  }
  --depth_;
  ++offset_;
  return true;
}

Status JsonReader::read_object(const std::function<Status(const std::string& key)>& member) {
  if (next() != '{') return status(reject_type(describe(JsonType::kObject)));
  return status(walk_object([&](std::string_view key) { return keep(member(std::string(key))); }));
}

Status JsonReader::read_array(const std::function<Status(size_t index)>& element) {
  if (next() != '[') return status(reject_type(describe(JsonType::kArray)));
  return status(walk_array([&](size_t index) { return keep(element(index)); }));
}

Status JsonReader::check_array(const std::function<Status(size_t index, std::string_view text)>& object) {
  if (next() != '[') return status(reject_type(describe(JsonType::kArray)));
  return status(walk_array([&](size_t index) {
    const bool is_object = next() == '{';
    const size_t start = offset_;
    if (!skip_value()) return false;
    return !is_object || keep(object(index, text_.substr(start, offset_ - start)));
  }));
}

bool JsonReader::skip_value() {
  const char c = next();
  if (c == '-' || is_digit(c)) {
    RawNumber number;
    return scan_number(number);
  }
  if (c == '"') {
    RawString raw;
    return scan_string(raw);
  }
  if (c == '{') return walk_object([this](std::string_view) { return skip_value(); });
  if (c == '[') return walk_array([this](size_t) { return skip_value(); });
  if (c == 't') return read_literal("true");
  if (c == 'f') return read_literal("false");
  if (c == 'n') return read_literal("null");
  return reject_type("a value");  // nothing begins like this: it says what is wrong
}

Result<std::string_view> JsonReader::read_verbatim() {
  (void)next();
  const size_t start = offset_;
  if (!skip_value()) return fail(failure_);
  return text_.substr(start, offset_ - start);
}

Status JsonReader::expect_end() {
  (void)next();
  return status(offset_ == text_.size() || reject("expected the end of the text"));
}

std::optional<int64_t> integer_from(std::string_view number_text) {
  int64_t value = 0;
  const char* const end = number_text.data() + number_text.size();
  const auto [parsed_to, code] = std::from_chars(number_text.data(), end, value);
  if (code != std::errc() || parsed_to != end) return std::nullopt;
  return value;
}

std::optional<double> number_from(std::string_view number_text) {
  if (!is_finite(number_text)) return std::nullopt;
  double value = 0;
  const auto [parsed_to, code] = std::from_chars(number_text.data(), number_text.data() + number_text.size(), value);
  // Finite and yet out of range: too small for a double, even a denormal one.
  if (code == std::errc::result_out_of_range) return number_text.starts_with('-') ? -0.0 : 0.0;
  if (code != std::errc()) return std::nullopt;
  return value;
}

}  // namespace kcoral::schema
