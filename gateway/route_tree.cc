#include "gateway/route_tree.h"

#include <cstring>

#include "base/error.h"
#include "gateway/pistache.h"

namespace kcoral::gateway {
namespace {

/// What the tree holds in place of a handler: it is looked at, never called.
struct Index {
  size_t value;
  Pistache::Rest::Route::Result operator()(const Pistache::Rest::Request&, Pistache::Http::ResponseWriter) const {
    return Pistache::Rest::Route::Result::Failure;
  }
};

}  // namespace

struct RouteTree::Tree {
  Pistache::Rest::SegmentTreeNode segments;
  std::optional<size_t> root;  // the tree refuses an empty path
};

RouteTree::RouteTree() : tree_(std::make_unique<Tree>()) {}
RouteTree::~RouteTree() = default;

void RouteTree::add(std::string_view pattern, size_t index) {
  KCORAL_CHECK(pattern.starts_with('/'));
  pattern.remove_prefix(1);
  if (pattern.empty()) {
    tree_->root = index;
    return;
  }
  // The tree's keys are views into this copy, which it keeps alive.
  const std::shared_ptr<char> copy(new char[pattern.size()], std::default_delete<char[]>());
  std::memcpy(copy.get(), pattern.data(), pattern.size());
  tree_->segments.addRoute(std::string_view(copy.get(), pattern.size()), Index{index}, copy);
}

std::optional<RouteTree::Found> RouteTree::find(std::string_view path) const {
  if (!path.starts_with('/')) return std::nullopt;
  if (path == "/") return tree_->root ? std::optional(Found{*tree_->root, {}}) : std::nullopt;
  // The tree itself would forgive these.
  if (path.ends_with('/') || path.find("//") != std::string_view::npos) return std::nullopt;
  const auto [route, parameters, splats] = tree_->segments.findRoute(path.substr(1));
  if (route == nullptr) return std::nullopt;
  Found found{route->handler_.target<Index>()->value, {}};
  for (const auto& parameter : parameters) found.parameters.push_back(parameter.as<std::string>());
  return found;
}

}  // namespace kcoral::gateway
