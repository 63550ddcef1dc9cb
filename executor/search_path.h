// Looking for programs as a shell does.
#pragma once

#include <string>
#include <vector>

namespace kcoral::executor {

/// Every file of this name in the absolute directories of PATH, in their order.
std::vector<std::string> files_on_path(const std::string& name);

}  // namespace kcoral::executor
