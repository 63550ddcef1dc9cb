#include "base/uuid.h"

#include <sys/random.h>

#include "base/error.h"

namespace kcoral {
namespace {

constexpr char kHex[] = "0123456789abcdef";

int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool is_dash_position(size_t i) { return i == 8 || i == 13 || i == 18 || i == 23; }

}  // namespace

Uuid Uuid::random() {
  Uuid id;
  KCORAL_CHECK(getrandom(id.bytes_.data(), id.bytes_.size(), 0) == 16);
  id.set_version(4);
  return id;
}

Uuid Uuid::made_at(WallTime now) {
  Uuid id = random();
  const auto ms = static_cast<uint64_t>(std::chrono::floor<std::chrono::milliseconds>(now.time_since_epoch()).count());
  for (size_t i = 0; i < 6; ++i) id.bytes_[i] = static_cast<uint8_t>(ms >> (8 * (5 - i)));
  id.set_version(7);
  return id;
}

void Uuid::set_version(uint8_t version) {
  bytes_[6] = static_cast<uint8_t>((bytes_[6] & 0x0f) | (version << 4));
  bytes_[8] = (bytes_[8] & 0x3f) | 0x80;
}

std::optional<Uuid> Uuid::parse(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  Uuid id;
  size_t digits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_dash_position(i)) {
      if (text[i] != '-') return std::nullopt;
      continue;
    }
    const int value = nibble(text[i]);
    if (value < 0) return std::nullopt;
    uint8_t& byte = id.bytes_[digits / 2];
    byte = static_cast<uint8_t>((byte << 4) | value);
    ++digits;
  }
  return id;
}

std::string Uuid::str() const {
  std::string text;
  text.reserve(36);
  for (const uint8_t byte : bytes_) {
    if (is_dash_position(text.size())) text += '-';
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

}  // namespace kcoral
