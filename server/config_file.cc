#include "server/config_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kcoral::server {
namespace {

/// Those that a file may set: neither help nor what is about the file itself.
bool is_setting(const CLI::Option& option) {
  const std::string name = option.get_name();
  return !option.get_lnames().empty() && name != "--help" && name != "--config" && name != "--print-config";
}

std::string name_of(const CLI::Option& option) { return option.get_lnames().front(); }

CLI::Option* find_setting(CLI::App& app, const std::string& name) {
  CLI::Option* const option = app.get_option_no_throw("--" + name);
  return option != nullptr && is_setting(*option) ? option : nullptr;
}

bool is_number(const std::string& text) {
  char* end = nullptr;
  (void)std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

std::string toml_value(const std::string& text) {
  if (is_number(text)) return text;
  // Only TOML's basic strings would need escapes; a literal string ends at its quote.
  return text.find('\'') == std::string::npos ? "'" + text + "'" : "\"" + text + "\"";
}

std::string values_of(const CLI::Option& option) {
  std::vector<std::string> values = option.count() > 0 ? option.reduced_results() : std::vector<std::string>();
  if (values.empty() && !option.get_default_str().empty()) values = {option.get_default_str()};
  for (std::string& value : values) value = toml_value(value);
  const bool is_list = option.get_items_expected_max() > 1;
  return is_list ? fmt::format("[{}]", fmt::join(values, ", ")) : fmt::format("{}", fmt::join(values, ""));
}

bool is_flag_given(const CLI::Option& option, const std::vector<std::string>& arguments) {
  const std::string flag = "--" + name_of(option);
  return std::any_of(arguments.begin(), arguments.end(),
                     [&](const std::string& argument) { return argument == flag || argument.starts_with(flag + "="); });
}

std::string source_of(const CLI::Option& option, const std::vector<std::string>& arguments,
                      const std::string& config_path) {
  if (option.count() == 0) return "default";
  if (is_flag_given(option, arguments)) return "flag";
  const std::string variable = option.get_envname();
  if (const char* value = std::getenv(variable.c_str()); !variable.empty() && value != nullptr && *value != '\0') {
    return variable;
  }
  return config_path;
}

}  // namespace

void read_config_file(CLI::App& app, const std::string& path) {
  std::ifstream file(path);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored))
    throw CLI::FileError("--config: cannot read " + path, CLI::ExitCodes::FileError);
  const auto refuse = [&](const std::string& why) {
    throw CLI::ConfigError(path + ": " + why, CLI::ExitCodes::ConfigError);
  };
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) {
    if (!item.parents.empty()) refuse("sections are not known: [" + item.parents.front() + "]");
    CLI::Option* const option = find_setting(app, item.name);
    if (option == nullptr) refuse("there is no setting '" + item.name + "'; see kcoral server --print-config");
    if (option->count() > 0) continue;
    try {
      for (const std::string& value : item.inputs) option->add_result(value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      refuse(error.what());
    }
  }
}

std::string print_config(const CLI::App& app, const std::vector<std::string>& arguments,
                         const std::string& config_path) {
  std::string text =
      "# Settings of kcoral server: a flag wins over its variable, that over the file, and it over the default.\n";
  for (const CLI::Option* option : app.get_options([](const CLI::Option* each) { return is_setting(*each); })) {
    const std::string values = values_of(*option);
    const bool is_set = !values.empty() && values != "[]";
    text += is_set
                ? fmt::format("{} = {}  # {}\n", name_of(*option), values, source_of(*option, arguments, config_path))
                : fmt::format("# {} is not set\n", name_of(*option));
  }
  return text;
}

}  // namespace kcoral::server
