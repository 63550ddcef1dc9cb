#include "executor/search_path.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace kcoral::executor {

std::vector<std::string> files_on_path(const std::string& name) {
  std::vector<std::string> files;
  const char* search_path = std::getenv("PATH");
  std::string_view rest = search_path != nullptr ? search_path : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    std::string file = std::string(rest.substr(0, end)) + "/" + name;
    rest.remove_prefix(std::min(end + 1, rest.size()));
    std::error_code error;
    if (file.starts_with('/') && std::filesystem::exists(file, error)) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace kcoral::executor
