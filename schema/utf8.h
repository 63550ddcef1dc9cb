// One step of UTF-8 decoding, shared by everything here that reads bytes of unknown quality. Private to schema/.
#pragma once

#include <cstddef>
#include <string_view>

namespace kcoral::schema {

struct Utf8Step {
  size_t length;        // bytes to go on by; at least 1
  bool is_well_formed;  // else these bytes are one maximal ill-formed subsequence
};

/// The character, or the maximal ill-formed subsequence, that begins at `offset`: no overlong forms, no surrogates,
/// nothing above U+10FFFF. Requires: offset < bytes.size().
Utf8Step utf8_step(std::string_view bytes, size_t offset);

/// The longest prefix of at most `bytes_max` bytes that does not end inside a character. Requires: valid UTF-8.
std::string_view utf8_prefix(std::string_view text, size_t bytes_max);

/// The longest suffix of at most `bytes_max` bytes that does not begin inside a character. Requires: valid UTF-8.
std::string_view utf8_suffix(std::string_view text, size_t bytes_max);

/// Bytes from `offset` on that are plain in a JSON string: ASCII, no control character, no quote, no backslash.
size_t plain_run(std::string_view bytes, size_t offset);

/// Bytes from `offset` on that are plain or well-formed characters beyond ASCII. It ends before a quote, a backslash, a
/// control character or what is not UTF-8.
size_t string_run(std::string_view bytes, size_t offset);

}  // namespace kcoral::schema
