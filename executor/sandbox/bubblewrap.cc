#include "executor/sandbox/bubblewrap.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "executor/search_path.h"

namespace kcoral::executor {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kZygoteTmpBytes = 64ULL << 20;
constexpr const char* kProgramFilesExecutable = "0555";
constexpr const char* kProgramFilesReadable = "0444";

// Of /etc only what libraries look up; nothing that tells hosts or users apart.
constexpr const char* kEtcEntries[] = {
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl",
    "/etc/localtime",   "/etc/mime.types", "/etc/services",     "/etc/protocols",    "/etc/ca-certificates"};

// Covered or generated inside, so nothing of the host can be shown there.
constexpr const char* kReserved[] = {"/work", "/tmp", "/run/kcoral", "/dev", "/proc", "/kcoral"};

/// Whether `path` is `directory` or lies below it. Both are absolute and normal.
bool is_within(std::string_view path, std::string_view directory) {
  if (directory == "/") return true;
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

std::string normal(const std::string& path) {
  std::string text = fs::path(path).lexically_normal().string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string content;
  // Unformatted reads report a failure by state, where the stream's iterators throw.
  for (std::array<char, 65536> buffer; file.read(buffer.data(), buffer.size()) || file.gcount() > 0;) {
    content.append(buffer.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof()) return fail_errno("read", path);
  return content;
}

/// Builds the command line step by step.
class CommandBuilder {
 public:
  CommandBuilder(std::string bubblewrap, int first_free_fd) : next_fd_(first_free_fd) {
    command_.arguments.push_back(std::move(bubblewrap));
  }

  template <typename... Text>
  void add(Text&&... text) {
    (command_.arguments.emplace_back(std::forward<Text>(text)), ...);
  }

  void add_data(const char* permissions, const std::string& path_inside, std::shared_ptr<const SealedMemory> content) {
    const int fd = next_fd_++;
    add("--perms", permissions, "--ro-bind-data", std::to_string(fd), path_inside);
    command_.inputs.emplace_back(fd, std::move(content));
  }

  Status add_text(const std::string& path_inside, std::string_view text) {
    auto content = SealedMemory::copy_of(text);
    if (!content) return fail(content.error());
    add_data(kProgramFilesReadable, path_inside, std::move(*content));
    return {};
  }

  /// Shows a path of the host read-only, unless a directory around it is shown already.
  void show(const std::string& path) {
    if (is_shown(path)) return;
    add("--ro-bind", path, path);
    shown_.push_back(path);
  }
  bool is_shown(const std::string& path) const {
    return std::any_of(shown_.begin(), shown_.end(), [&](const std::string& shown) { return is_within(path, shown); });
  }

  SlotCommand take() && { return std::move(command_); }

 private:
  SlotCommand command_;
  int next_fd_;
  std::vector<std::string> shown_;
};

void add_namespaces(CommandBuilder& builder) {
  builder.add("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-ipc",
              "--unshare-cgroup-try", "--hostname", "kcoral", "--die-with-parent", "--new-session", "--chdir", "/");
}

void add_environment(CommandBuilder& builder, const SlotSpec& spec) {
  builder.add("--clearenv");
  for (const auto& [name, value] : slot_environment(spec)) builder.add("--setenv", name, value);
}

void add_system(CommandBuilder& builder) {
  builder.show("/usr");
  for (const char* name : {"bin", "sbin", "lib", "lib32", "lib64", "libx32"}) {
    const std::string path = std::string("/") + name;
    std::error_code error;
    if (const fs::path target = fs::read_symlink(path, error); !error) {
      builder.add("--symlink", target.string(), path);
    } else if (exists(path)) {
      builder.show(path);
    }
  }
  for (const char* entry : kEtcEntries) {
    if (exists(entry)) builder.add("--ro-bind", entry, entry);
  }
  if (exists("/opt")) builder.show("/opt");
}

Status add_read_only_paths(CommandBuilder& builder, const SlotSpec& spec) {
  std::vector<std::string> paths;
  for (const std::string& path : spec.read_only_paths) {
    if (!path.starts_with('/') || normal(path) == "/") {
      return fail(ErrorKind::kEnvironment, "the slot cannot be shown \"{}\": an absolute path other than / is needed",
                  path);
    }
    paths.push_back(normal(path));
  }
  std::sort(paths.begin(), paths.end());  // directories before what lies in them
  for (const std::string& path : paths) {
    for (const char* reserved : kReserved) {
      if (is_within(path, reserved)) {
        return fail(ErrorKind::kEnvironment,
                    "the slot cannot be shown {}: every program gets a {} of its own; keep it elsewhere", path,
                    reserved);
      }
    }
    for (const std::string& hidden : spec.hidden_paths) {
      if (is_within(path, normal(hidden))) {
        return fail(ErrorKind::kEnvironment, "the slot cannot be shown {}: it lies in {}, which stays hidden", path,
                    hidden);
      }
    }
    builder.show(path);
  }
  return {};
}

/// Covers what must stay hidden, where a directory around it is shown. What the slot's user cannot reach needs no
/// cover.
void add_hidden_paths(CommandBuilder& builder, const SlotSpec& spec) {
  for (const std::string& given : spec.hidden_paths) {
    const std::string path = normal(given);
    if (!builder.is_shown(path) || !exists(path)) continue;
    builder.add("--perms", "0000", "--tmpfs", path, "--remount-ro", path);
  }
}

Status add_generated_etc(CommandBuilder& builder, const SlotSpec& spec) {
  // The slot's own user comes first: where it is `nobody`, a look-up by number still finds this name.
  std::string passwd = fmt::format("kcoral:x:{}:{}:kcoral:{}:/bin/sh\nroot:x:0:0:root:/root:/usr/sbin/nologin\n",
                                   spec.uid, spec.gid, kHomeInside);
  std::string group = fmt::format("kcoral:x:{}:\nroot:x:0:\n", spec.gid);
  if (spec.uid != 65534) passwd += "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
  if (spec.gid != 65534) group += "nogroup:x:65534:\n";
  const std::pair<const char*, std::string> files[] = {
      {"/etc/passwd", passwd},
      {"/etc/group", group},
      {"/etc/hosts", "127.0.0.1 localhost kcoral\n::1 localhost kcoral\n"},
      {"/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\nservices: files\nprotocols: files\n"},
  };
  for (const auto& [path, text] : files) {
    if (auto added = builder.add_text(path, text); !added) return added;
  }
  return {};
}

/// What is mounted and copied; the root and /dev are made read-only last, since they are where mount points are made.
void add_mounts(CommandBuilder& builder, const SlotSpec& spec) {
  builder.add("--proc", "/proc", "--dev", "/dev");
  for (const std::string& node : spec.device_nodes) builder.add("--dev-bind", node, node);
  builder.add("--size", std::to_string(kZygoteTmpBytes), "--perms", "1777", "--tmpfs", "/tmp");
  builder.add("--size", std::to_string(kZygoteTmpBytes), "--perms", "0700", "--tmpfs", "/run/kcoral");
  builder.add("--perms", "0700", "--dir", kHomeInside);
  builder.add("--perms", "0700", "--dir", "/work");
  for (const SlotFile& file : spec.files) {
    builder.add_data(file.executable ? kProgramFilesExecutable : kProgramFilesReadable, file.path_inside, file.content);
  }
  builder.add("--remount-ro", "/dev", "--remount-ro", "/");
}

Result<std::string> find_system_bubblewrap() {
  if (::access("/usr/bin/bwrap", X_OK) == 0) return std::string("/usr/bin/bwrap");
  for (const std::string& candidate : files_on_path("bwrap")) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return fail(ErrorKind::kEnvironment, "bubblewrap is not installed (Debian: apt install bubblewrap)");
}

}  // namespace

Result<std::vector<SlotFile>> load_slot_files(const InstallPaths& paths) {
  std::vector<SlotFile> files;
  const auto load = [&](const std::string& path, std::string path_inside, bool executable) -> Status {
    auto text = read_file(path);
    if (!text) return fail(text.error());
    auto content = SealedMemory::copy_of(*text);
    if (!content) return fail(content.error());
    files.push_back({std::move(path_inside), executable, std::move(*content)});
    return {};
  };
  if (auto loaded = load(paths.init, kInitInside, true); !loaded) return fail(loaded.error());
  if (auto loaded = load(paths.sandbox_library, kSandboxLibraryInside, true); !loaded) return fail(loaded.error());
  if (auto loaded = load(paths.timing_library, kTimingLibraryInside, true); !loaded) return fail(loaded.error());

  std::error_code error;
  std::vector<fs::path> sources;
  for (auto entry = fs::recursive_directory_iterator(paths.python_directory, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".py") sources.push_back(entry->path());
  }
  if (error) return fail(ErrorKind::kEnvironment, "cannot list {}: {}", paths.python_directory, error.message());
  std::sort(sources.begin(), sources.end());
  for (const fs::path& source : sources) {
    const fs::path inside = kPythonDirectoryInside / source.lexically_relative(paths.python_directory);
    if (auto loaded = load(source.string(), inside.string(), false); !loaded) return fail(loaded.error());
  }
  return files;
}

Result<std::shared_ptr<const Bubblewrap>> open_bubblewrap(const InstallPaths& paths) {
  auto path = paths.bubblewrap.empty() ? find_system_bubblewrap() : paths.bubblewrap;
  if (!path) return fail(path.error());
  UniqueFd file(::open(path->c_str(), O_PATH | O_CLOEXEC));
  if (!file) return fail_errno("open", *path);
  return std::make_shared<const Bubblewrap>(Bubblewrap{std::move(*path), std::move(file)});
}

std::map<std::string, std::string> slot_environment(const SlotSpec& spec) {
  std::string path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  std::map<std::string, std::string> environment{{"HOME", kHomeInside}, {"TMPDIR", "/tmp"},  {"USER", "kcoral"},
                                                 {"LOGNAME", "kcoral"}, {"LANG", "C.UTF-8"}, {"TZ", "UTC"}};
  if (exists("/usr/local/cuda/bin")) {
    path = "/usr/local/cuda/bin:" + path;
    environment["CUDA_HOME"] = "/usr/local/cuda";
  }
  // Tools that a virtual environment brings along are found as in a shell that activated it.
  const std::string programs = fs::path(spec.python).parent_path().string();
  if (!programs.empty() && programs != "/usr/bin" && programs != "/bin") path = programs + ":" + path;
  environment["PATH"] = path;
  for (const auto& [name, value] : spec.environment) environment[name] = value;
  return environment;
}

Result<SlotCommand> make_slot_command(const SlotSpec& spec, const std::vector<std::string>& command,
                                      int first_free_fd) {
  if (spec.uid == 0) return fail(ErrorKind::kEnvironment, "a slot never runs as uid 0: choose an unprivileged user");
  KCORAL_CHECK(spec.bubblewrap != nullptr);
  CommandBuilder builder(spec.bubblewrap->path, first_free_fd);
  add_namespaces(builder);
  add_environment(builder, spec);
  add_system(builder);
  if (auto added = add_read_only_paths(builder, spec); !added) return fail(added.error());
  add_hidden_paths(builder, spec);
  if (auto added = add_generated_etc(builder, spec); !added) return fail(added.error());
  add_mounts(builder, spec);
  builder.add("--", kInitInside, "zygote", "--");
  for (const std::string& argument : command) builder.add(argument);
  return std::move(builder).take();
}

}  // namespace kcoral::executor
