// SHA-256 digests, the names of all content.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kcoral {

class Digest {
 public:
  Digest() = default;
  /// Accepts only 64 lowercase hexadecimal digits.
  static std::optional<Digest> parse(std::string_view hex);
  static Digest from_bytes(const std::array<uint8_t, 32>& bytes) { return Digest(bytes); }

  std::string hex() const;
  const std::array<uint8_t, 32>& bytes() const { return bytes_; }
  auto operator<=>(const Digest&) const = default;

 private:
  explicit Digest(const std::array<uint8_t, 32>& bytes) : bytes_(bytes) {}
  std::array<uint8_t, 32> bytes_{};
};

/// Hashes a stream. Not thread-safe; `finish` may be called once.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  Digest finish();

  static Digest of(std::span<const std::byte> bytes);
  static Digest of(std::string_view text) { return of(std::as_bytes(std::span(text))); }

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace kcoral

template <>
struct std::hash<kcoral::Digest> {
  size_t operator()(const kcoral::Digest& digest) const noexcept {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(digest.bytes().data()), 32});
  }
};
