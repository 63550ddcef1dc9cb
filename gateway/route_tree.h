// Pistache's route tree as a map from path patterns to numbers. Thread-safe once it is filled.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kcoral::gateway {

class RouteTree {
 public:
  RouteTree();
  ~RouteTree();

  /// `pattern` begins with '/'; a segment that begins with ':' stands for any one segment. Requires: not added before.
  void add(std::string_view pattern, size_t index);

  struct Found {
    size_t index = 0;
    std::vector<std::string> parameters;  // the segments that stand for any, in order and as they were sent
  };
  /// A trailing or doubled slash is a different path, which is never found.
  std::optional<Found> find(std::string_view path) const;

 private:
  struct Tree;  // keeps Pistache's types out of this header
  std::unique_ptr<Tree> tree_;
};

}  // namespace kcoral::gateway
