// How the content is found in RocksDB: the keys that content.h documents.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/uuid.h"
#include "store/content.h"

namespace kcoral::store {

inline constexpr std::string_view kWritingMark = "writing";

inline std::string big_endian(uint64_t value, int bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (int i = bytes - 1; i >= 0; --i) {
    text[static_cast<size_t>(i)] = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return text;
}

inline uint64_t from_big_endian(std::string_view text) {
  uint64_t value = 0;
  for (const char c : text) value = (value << 8) | static_cast<uint8_t>(c);
  return value;
}

/// The bytes of a digest or of a request's id.
template <typename Name>
std::string_view raw(const Name& name) {
  return {reinterpret_cast<const char*>(name.bytes().data()), name.bytes().size()};
}

inline std::string chunk_key(ContentId id, uint64_t index) { return big_endian(id, 8) + big_endian(index, 4); }
inline std::string artifact_key(const Uuid& request_id, ContentId id) {
  return std::string(raw(request_id)) + big_endian(id, 8);
}

struct ArtifactName {
  Uuid request_id;
  ContentId id = 0;
};

/// What a key of an artifact names; nullopt if it is none.
inline std::optional<ArtifactName> artifact_of(std::string_view key) {
  std::array<uint8_t, 16> request_id;
  if (key.size() != request_id.size() + 8) return std::nullopt;
  std::copy_n(key.begin(), request_id.size(), request_id.begin());
  return ArtifactName{.request_id = Uuid::from_bytes(request_id), .id = from_big_endian(key.substr(request_id.size()))};
}

inline std::string writing_key(ContentId id) { return std::string(kWritingMark) + big_endian(id, 8); }

}  // namespace kcoral::store
