// Request and instance ids: UUIDs whose one text form is canonical lowercase.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace kcoral {

class Uuid {
 public:
  Uuid() = default;

  /// A random (version 4) id from the kernel's generator.
  static Uuid random();
  /// A new id that sorts behind those of earlier milliseconds (version 7, RFC 9562): what is kept by such ids is
  /// written side by side. 74 bits of it are random.
  static Uuid made_at(WallTime now);
  /// Accepts only 36 characters of canonical lowercase form, any version.
  static std::optional<Uuid> parse(std::string_view text);
  static Uuid from_bytes(const std::array<uint8_t, 16>& bytes) { return Uuid(bytes); }

  std::string str() const;
  const std::array<uint8_t, 16>& bytes() const { return bytes_; }

  auto operator<=>(const Uuid&) const = default;

 private:
  explicit Uuid(const std::array<uint8_t, 16>& bytes) : bytes_(bytes) {}
  void set_version(uint8_t version);

  std::array<uint8_t, 16> bytes_{};
};

}  // namespace kcoral

template <>
struct std::hash<kcoral::Uuid> {
  size_t operator()(const kcoral::Uuid& id) const noexcept {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(id.bytes().data()), 16});
  }
};
