#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace kcoral {

std::optional<Digest> Digest::parse(std::string_view hex) {
  if (hex.size() != 64) return std::nullopt;
  Digest digest;
  for (size_t i = 0; i < hex.size(); ++i) {
    const char c = hex[i];
    int value;
    if (c >= '0' && c <= '9') {
      value = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      value = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    uint8_t& byte = digest.bytes_[i / 2];
    byte = static_cast<uint8_t>((byte << 4) | value);
  }
  return digest;
}

std::string Digest::hex() const {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  text.reserve(64);
  for (const uint8_t byte : bytes_) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return text;
}

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  // Fetched once: looking the algorithm up costs more than hashing a small program.
  static EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  KCORAL_CHECK(EVP_DigestInit_ex(context_->evp, algorithm, nullptr) == 1);
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  KCORAL_CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
}

Digest Sha256::finish() {
  std::array<uint8_t, 32> bytes;
  KCORAL_CHECK(EVP_DigestFinal_ex(context_->evp, bytes.data(), nullptr) == 1);
  return Digest::from_bytes(bytes);
}

Digest Sha256::of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

}  // namespace kcoral
