// The path rules of contract section 3 for uploads, file returns and folder returns.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace kcoral::schema {

/// A relative POSIX path without "." and doubled "/". Refused: empty (also after normalising: "." names the working
/// directory itself), absolute, a ".." component, a backslash, NUL, a component over 255 bytes, a path over 4096 bytes.
/// The message says what was wrong with `path`.
Result<std::string> normalise_path(std::string_view path);

/// Two paths of a set that cannot both be files: `inner` is `outer` again or lies below it.
struct PathOverlap {
  size_t outer;
  size_t inner;
};

/// Indices of two overlapping paths, if there are any. Requires: normalised paths.
std::optional<PathOverlap> find_overlap(const std::vector<std::string_view>& paths);

/// For a message: `the path "a" is a directory of "a/b"`.
std::string describe_overlap(std::string_view outer, std::string_view inner);

/// Refuses a set of normalised upload paths in which one is named twice or is a directory of another.
Status check_no_overlap(std::vector<std::string_view> paths);

}  // namespace kcoral::schema
