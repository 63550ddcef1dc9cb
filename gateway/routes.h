// The endpoints of contract section 1: which path and method is which. Thread-safe once it is filled.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "gateway/route_tree.h"

namespace kcoral::gateway {

enum class Endpoint {
  kExecute,
  kEnqueue,
  kHistory,
  kStatus,
  kCancel,
  kResult,
  kProgram,
  kAudit,
  kOutput,
  kArtifact,
  kHealth,
  kGpus,
  kMetrics,
};

class Routes {
 public:
  struct Match {
    Endpoint endpoint;
    std::vector<std::string> parameters;  // segments of the path, as they were sent
  };
  struct NotFound {};
  struct MethodNotAllowed {
    std::string allow;  // "GET, HEAD"
  };

  /// A GET endpoint answers HEAD as well: the connection leaves the body out.
  void add(std::string_view method, std::string_view pattern, Endpoint endpoint);

  std::variant<Match, NotFound, MethodNotAllowed> match(std::string_view method, std::string_view path) const;

 private:
  struct Path {
    std::string pattern;
    std::vector<std::pair<std::string, Endpoint>> methods;
  };
  RouteTree tree_;
  std::vector<Path> paths_;
};

}  // namespace kcoral::gateway
