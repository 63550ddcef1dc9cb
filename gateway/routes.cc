#include "gateway/routes.h"

#include <algorithm>

namespace kcoral::gateway {

void Routes::add(std::string_view method, std::string_view pattern, Endpoint endpoint) {
  auto path =
      std::find_if(paths_.begin(), paths_.end(), [pattern](const Path& known) { return known.pattern == pattern; });
  if (path == paths_.end()) {
    tree_.add(pattern, paths_.size());
    path = paths_.insert(paths_.end(), Path{std::string(pattern), {}});
  }
  path->methods.emplace_back(method, endpoint);
  if (method == "GET") path->methods.emplace_back("HEAD", endpoint);
}

std::variant<Routes::Match, Routes::NotFound, Routes::MethodNotAllowed> Routes::match(std::string_view method,
                                                                                      std::string_view path) const {
  auto found = tree_.find(path);
  if (!found) return NotFound{};
  MethodNotAllowed not_allowed;
  for (const auto& [known, endpoint] : paths_[found->index].methods) {
    if (known == method) return Match{endpoint, std::move(found->parameters)};
    if (!not_allowed.allow.empty()) not_allowed.allow += ", ";
    not_allowed.allow += known;
  }
  return not_allowed;
}

}  // namespace kcoral::gateway
