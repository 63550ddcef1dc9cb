#include "schema/path.h"

#include <algorithm>
#include <numeric>

#include "schema/fields.h"
#include "schema/limits.h"

namespace kcoral::schema {
namespace {

/// Orders a directory directly before everything in it: "a" < "a/b" < "a.b", unlike plain bytes.
bool path_less(std::string_view left, std::string_view right) {
  const auto rank = [](char c) { return c == '/' ? 0 : static_cast<int>(static_cast<unsigned char>(c)); };
  return std::lexicographical_compare(left.begin(), left.end(), right.begin(), right.end(),
                                      [&](char a, char b) { return rank(a) < rank(b); });
}

bool is_same_or_inside(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

}  // namespace

Result<std::string> normalise_path(std::string_view path) {
  const auto refuse = [&](std::string_view why) {
    return fail(ErrorKind::kParse, "the path {} {}", quote_short(path), why);
  };
  if (path.empty()) return refuse("is empty");
  if (path.size() > limits::kPathBytesMax) return refuse(fmt::format("is over {} bytes", limits::kPathBytesMax));
  if (path.front() == '/') return refuse("is absolute; it must be relative to the working directory");
  if (path.find('\\') != std::string_view::npos) return refuse("contains a backslash; components are separated by /");
  if (path.find('\0') != std::string_view::npos) return refuse("contains a NUL character");

  std::string normalised;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view component = path.substr(begin, end - begin);
    begin = end + 1;
    if (component.empty() || component == ".") continue;
    if (component == "..") return refuse("has a .. component");
    if (component.size() > limits::kPathComponentBytesMax) {
      return refuse(fmt::format("has a component over {} bytes", limits::kPathComponentBytesMax));
    }
    if (!normalised.empty()) normalised += '/';
    normalised += component;
  }
  if (normalised.empty()) return refuse("names the working directory itself");
  return normalised;
}

std::optional<PathOverlap> find_overlap(const std::vector<std::string_view>& paths) {
  std::vector<size_t> order(paths.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Stable, so that of two equal paths the one given first comes first.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return path_less(paths[a], paths[b]); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (is_same_or_inside(paths[order[i]], paths[order[i - 1]])) {
      return PathOverlap{.outer = order[i - 1], .inner = order[i]};
    }
  }
  return std::nullopt;
}

std::string describe_overlap(std::string_view outer, std::string_view inner) {
  if (outer == inner) return fmt::format("the path {} is named twice", quote_short(outer));
  return fmt::format("the path {} is a directory of {}", quote_short(outer), quote_short(inner));
}

Status check_no_overlap(std::vector<std::string_view> paths) {
  const auto overlap = find_overlap(paths);
  if (!overlap) return {};
  return fail(ErrorKind::kParse, "{}", describe_overlap(paths[overlap->outer], paths[overlap->inner]));
}

}  // namespace kcoral::schema
