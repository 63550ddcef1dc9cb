#include "server/config_file.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

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

/// As TOML. Only what every reader writes back in the same way is a number.
std::string toml_value(const std::string& text) {
  const bool is_whole = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (is_whole && (text == "0" || text.front() != '0') && text.size() <= 18) return text;
  // TOML's basic strings have JSON's escapes.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// As a flag would be given it.
std::string flag_value(const toml::node& node, const std::function<void(const std::string&)>& refuse) {
  if (const auto* text = node.as_string()) return text->get();
  std::ostringstream out;
  if (const auto* number = node.as_integer()) {
    out << number->get();
  } else if (const auto* real = node.as_floating_point()) {
    out << *real;
  } else {
    refuse("a setting is a string, a number, or a list of strings");
  }
  return out.str();
}

bool is_list(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

/// Whether it was given a list of nothing. A flag says so by an empty value: --preload ''.
bool is_empty_list(const CLI::Option& option) {
  return is_list(option) && option.count() == 1 && option.results().front().empty();
}

std::string values_of(const CLI::Option& option) {
  if (is_empty_list(option)) return "[]";
  std::vector<std::string> values = option.count() > 0 ? option.reduced_results() : std::vector<std::string>();
  if (values.empty() && !option.get_default_str().empty()) values = {option.get_default_str()};
  for (std::string& value : values) value = toml_value(value);
  return is_list(option) ? fmt::format("[{}]", fmt::join(values, ", ")) : fmt::format("{}", fmt::join(values, ""));
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
  const auto refuse = [&](const std::string& why) {
    throw CLI::ConfigError(path + ": " + why, CLI::ExitCodes::ConfigError);
  };
  std::ifstream file(path);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored)) {
    throw CLI::FileError("--config: cannot read " + path, CLI::ExitCodes::FileError);
  }
  toml::table settings;
  try {
    settings = toml::parse(file, path);
  } catch (const toml::parse_error& error) {
    refuse(fmt::format("line {}: {}", error.source().begin.line, error.description()));
  }
  for (const auto& [key, node] : settings) {
    const std::string name(key.str());
    const auto refuse_here = [&](const std::string& why) {
      refuse(fmt::format("line {}: {}: {}", node.source().begin.line, name, why));
    };
    if (node.is_table()) refuse_here("sections are not known");
    CLI::Option* const option = find_setting(app, name);
    if (option == nullptr) refuse_here("there is no such setting; kcoral server --print-config shows them");
    if (option->count() > 0) continue;
    try {
      if (const toml::array* list = node.as_array()) {
        for (const toml::node& each : *list) option->add_result(flag_value(each, refuse_here));
        if (list->empty()) {
          if (!is_list(*option)) refuse_here("it has one value");
          option->add_result(std::string());  // given, and no value to check
          continue;
        }
      } else {
        option->add_result(flag_value(node, refuse_here));
      }
      option->run_callback();
    } catch (const CLI::ConfigError&) {
      throw;
    } catch (const CLI::ParseError& error) {
      const std::string why = error.what();
      const std::string flag = "--" + name + ": ";
      refuse_here(why.starts_with(flag) ? why.substr(flag.size()) : why);
    }
  }
}

std::string print_config(const CLI::App& app, const std::vector<std::string>& arguments,
                         const std::string& config_path) {
  std::string text =
      "# Settings of kcoral server: a flag wins over its variable, that over the file, and it over the default.\n";
  for (const CLI::Option* option : app.get_options([](const CLI::Option* each) { return is_setting(*each); })) {
    const std::string values = values_of(*option);
    const bool is_set = is_empty_list(*option) || (!values.empty() && values != "[]");
    if (!is_set) {
      text += fmt::format("# {} is not set\n", name_of(*option));
      continue;
    }
    // Defaults may be this machine's or this user's, so a file is not to hold them.
    const std::string source = source_of(*option, arguments, config_path);
    text += fmt::format("{}{} = {}  # {}\n", source == "default" ? "# " : "", name_of(*option), values, source);
  }
  return text;
}

}  // namespace kcoral::server
