// Settings from a file, and what is in force and where it came from.
//
// The file is TOML without sections: a setting for each option, by its name without the dashes; lists in brackets, and
// an empty one is given as much as any other: `preload = []` preloads nothing where there is a default. A flag wins
// over its environment variable, that over the file, and the file over the default. What `print_config` writes is such
// a file.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kcoral::server {

/// Gives the options of `app` that have no value yet those of the file. Requires: `app` was parsed. Throws
/// CLI::ParseError with the file's name: it cannot be read, names no setting, or a value is none of its setting.
void read_config_file(CLI::App& app, const std::string& path);

/// Every setting of `app`, one a line, with a comment that says where it came from. `arguments`: the command line.
std::string print_config(const CLI::App& app, const std::vector<std::string>& arguments,
                         const std::string& config_path);

}  // namespace kcoral::server
