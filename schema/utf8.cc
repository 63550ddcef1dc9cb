#include "schema/utf8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "schema/json_reader.h"

namespace kcoral::schema {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

/// What a lead byte demands: how many bytes the character has, and the range of the second. The range is what keeps
/// overlong forms, surrogates and values above U+10FFFF out; every later byte is 80..BF.
struct Lead {
  uint8_t length;  // 0: no character begins with this byte
  uint8_t second_min;
  uint8_t second_max;
};

constexpr Lead classify(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

constexpr std::array<Lead, 256> kLeads = [] {
  std::array<Lead, 256> leads{};
  for (size_t byte = 0; byte < leads.size(); ++byte) leads[byte] = classify(static_cast<uint8_t>(byte));
  return leads;
}();

bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

constexpr uint64_t repeat(uint8_t byte) { return 0x0101010101010101ULL * byte; }

/// The high bit of each byte of `word` that is zero. Bytes above the lowest such one may be flagged wrongly (the
/// subtraction borrows), so only the lowest flag counts.
constexpr uint64_t zero_bytes(uint64_t word) { return (word - repeat(0x01)) & ~word & repeat(0x80); }

constexpr uint64_t special_bytes(uint64_t word) {
  const uint64_t control = (word - repeat(0x20)) & ~word & repeat(0x80);
  return control | zero_bytes(word ^ repeat('"')) | zero_bytes(word ^ repeat('\\')) | (word & repeat(0x80));
}

bool is_plain(char c) {
  const auto byte = static_cast<uint8_t>(c);
  return byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
}

/// Where the first byte outside ASCII stands, or the end.
size_t ascii_run_end(std::string_view bytes, size_t offset) {
  while (offset + 8 <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + offset, 8);
    if ((word & repeat(0x80)) != 0) break;
    offset += 8;
  }
  while (offset < bytes.size() && static_cast<uint8_t>(bytes[offset]) < 0x80) ++offset;
  return offset;
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes, size_t offset) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[offset + i]); };
  const Lead lead = kLeads[at(0)];
  if (lead.length == 1) return {1, true};
  if (lead.length == 0) return {1, false};
  const size_t available = bytes.size() - offset;
  if (available < 2 || at(1) < lead.second_min || at(1) > lead.second_max) return {1, false};
  for (size_t i = 2; i < lead.length; ++i) {
    if (i >= available || !is_continuation(bytes[offset + i])) return {i, false};
  }
  return {lead.length, true};
}

std::string_view utf8_prefix(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && is_continuation(text[end])) --end;
  return text.substr(0, end);
}

std::string_view utf8_suffix(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t begin = text.size() - bytes_max;
  while (begin < text.size() && is_continuation(text[begin])) ++begin;
  return text.substr(begin);
}

size_t plain_run(std::string_view bytes, size_t offset) {
  static_assert(std::endian::native == std::endian::little, "the lowest flag must be the first byte in memory");
  size_t at = offset;
  while (at + 8 <= bytes.size()) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + at, 8);
    if (const uint64_t special = special_bytes(word); special != 0) {
      return at + static_cast<size_t>(std::countr_zero(special)) / 8 - offset;
    }
    at += 8;
  }
  while (at < bytes.size() && is_plain(bytes[at])) ++at;
  return at - offset;
}

size_t string_run(std::string_view bytes, size_t offset) {
  size_t at = offset;
  while (true) {
    at += plain_run(bytes, at);
    if (at == bytes.size() || static_cast<uint8_t>(bytes[at]) < 0x80) return at - offset;
    // Characters beyond ASCII come in rows.
    do {
      const Utf8Step step = utf8_step(bytes, at);
      if (!step.is_well_formed) return at - offset;
      at += step.length;
    } while (at < bytes.size() && static_cast<uint8_t>(bytes[at]) >= 0x80);
  }
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t offset = ascii_run_end(bytes, 0); offset < bytes.size(); offset = ascii_run_end(bytes, offset)) {
    const Utf8Step step = utf8_step(bytes, offset);
    if (!step.is_well_formed) return false;
    offset += step.length;
  }
  return true;
}

size_t utf8_incomplete_tail(std::string_view bytes) {
  constexpr size_t kTailMax = 3;
  for (size_t tail = 1; tail <= std::min(kTailMax, bytes.size()); ++tail) {
    const size_t begin = bytes.size() - tail;
    if (is_continuation(bytes[begin])) continue;
    const bool may_go_on = kLeads[static_cast<uint8_t>(bytes[begin])].length > tail;
    // A maximal ill-formed subsequence that reaches the end: each of its bytes was right where it stands.
    return may_go_on && utf8_step(bytes, begin).length == tail ? tail : 0;
  }
  return 0;
}

std::string utf8_with_replacement(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  size_t offset = 0;
  while (offset < bytes.size()) {
    const size_t end = ascii_run_end(bytes, offset);
    text.append(bytes, offset, end - offset);
    offset = end;
    if (offset == bytes.size()) break;
    const Utf8Step step = utf8_step(bytes, offset);
    text.append(step.is_well_formed ? bytes.substr(offset, step.length) : kReplacement);
    offset += step.length;
  }
  return text;
}

std::string json_quote(std::string_view text) {
  std::string quoted;
  quoted.reserve(text.size() + 2);
  quoted += '"';
  size_t offset = 0;
  while (offset < text.size()) {
    const size_t plain = plain_run(text, offset);
    quoted.append(text, offset, plain);
    offset += plain;
    if (offset == text.size()) break;
    const char c = text[offset++];
    switch (c) {
      case '"':
        quoted += "\\\"";
        break;
      case '\\':
        quoted += "\\\\";
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\r':
        quoted += "\\r";
        break;
      case '\t':
        quoted += "\\t";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          quoted += c;
        }
    }
  }
  quoted += '"';
  return quoted;
}

std::string json_text(std::string_view bytes) { return json_quote(utf8_with_replacement(bytes)); }

}  // namespace kcoral::schema
