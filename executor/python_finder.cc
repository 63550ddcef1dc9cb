#include "executor/python_finder.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "executor/child_process.h"
#include "executor/frame_fields.h"
#include "executor/search_path.h"

namespace kcoral::executor {
namespace {

constexpr std::chrono::seconds kProbeMax{20};
constexpr const char* kSystemPython = "/usr/bin/python3";
constexpr int kMinorMin = 10;

// What it says of itself, as one line of JSON. It runs as the slot's user, so what that user cannot see is not listed.
constexpr const char* kProbe = R"(
import importlib.util, json, os, sys
paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, os.path.dirname(sys.executable), *sys.path]
print(json.dumps({"path": sys.executable, "major": sys.version_info[0], "minor": sys.version_info[1],
                  "torch": importlib.util.find_spec("torch") is not None,
                  "version": "%d.%d.%d" % sys.version_info[:3],
                  "paths": [os.path.abspath(path) for path in paths if path and os.path.exists(path)]}))
)";

bool is_shown_anyway(const std::string& path) {
  return path == "/" || path == "/usr" || path.starts_with("/usr/") || path == "/bin" || path == "/lib";
}

Result<PythonChoice> read_probe(const std::string& candidate, const std::string& out) {
  const auto said = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
  auto path = string_field(said, "path");
  auto version = string_field(said, "version");
  auto major = unsigned_field(said, "major"), minor = unsigned_field(said, "minor");
  auto paths = strings_field(said, "paths");
  auto torch = boolean_field(said, "torch");
  if (!path || !version || !major || !minor || !paths || !torch || path->empty()) {
    return fail(ErrorKind::kEnvironment, "{} is no Python interpreter", candidate);
  }
  if (*major != 3 || *minor < kMinorMin) {
    return fail(ErrorKind::kEnvironment, "{} is Python {}; at least 3.{} is needed", candidate, *version, kMinorMin);
  }
  PythonChoice choice{std::move(*path), std::move(*version), {}, *torch, {}};
  for (std::string& shown : *paths) {
    auto& chosen = choice.read_only_paths;
    if (is_shown_anyway(shown) || std::find(chosen.begin(), chosen.end(), shown) != chosen.end()) continue;
    chosen.push_back(std::move(shown));
  }
  return choice;
}

/// With where its links lead: a virtual environment's interpreter is one, and that may be what cannot be reached.
std::string describe_place(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error);
  return error || real == path ? path : fmt::format("{} (a link to {})", path, real);
}

Result<PythonChoice> probe(const std::string& candidate, uid_t uid, gid_t gid) {
  ProcessSpec spec;
  spec.arguments = {candidate, "-I", "-B", "-c", kProbe};
  if (::geteuid() == 0) spec.user = ProcessSpec::User{uid, gid};
  auto run = run_captured(std::move(spec), kProbeMax);
  if (!run)
    return fail(ErrorKind::kEnvironment,
                "uid {} cannot run {}: {}; choose a --python that it can, or another --sandbox-user", uid,
                describe_place(candidate), run.error().message);
  if (run->status != ExitStatus{}) {
    return fail(ErrorKind::kEnvironment, "{} is no working Python for uid {}: {}, {}", candidate, uid,
                describe(run->status), run->err.empty() ? "no message" : run->err.substr(0, run->err.find('\n')));
  }
  return read_probe(candidate, run->out);
}

}  // namespace

Result<PythonChoice> find_python(const std::optional<std::string>& explicit_path, uid_t uid, gid_t gid) {
  if (explicit_path) {
    std::error_code error;
    const std::string path = std::filesystem::absolute(*explicit_path, error).lexically_normal();
    if (!std::filesystem::exists(path, error))
      return fail(ErrorKind::kEnvironment, "there is no {}: choose another --python", path);
    if (std::filesystem::is_directory(path, error))
      return fail(ErrorKind::kEnvironment, "{} is a directory: --python names an interpreter in one", path);
    auto choice = probe(path, uid, gid);
    if (choice) choice->why = "as configured";
    return choice;
  }
  for (const std::string& candidate : files_on_path("python3")) {
    auto choice = probe(candidate, uid, gid);
    if (!choice) continue;
    choice->why = fmt::format("the first python3 on PATH that uid {} can run", uid);
    return choice;
  }
  auto choice = probe(kSystemPython, uid, gid);
  if (choice) choice->why = fmt::format("uid {} can run no python3 on PATH", uid);
  return choice;
}

}  // namespace kcoral::executor
