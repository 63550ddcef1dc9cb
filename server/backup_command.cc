#include "server/backup_command.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/clock.h"
#include "schema/json_reader.h"
#include "schema/limits.h"
#include "server/control_socket.h"
#include "store/backup.h"
#include "store/data_dir.h"

namespace kcoral::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kShowAfter = 1s;
constexpr auto kShowEvery = 5s;  // where each is a line of its own
constexpr auto kCleanPatience = 5s;
constexpr int kPollMs = 10;

std::string human(uint64_t bytes) {
  if (bytes < 10 * limits::kMiB) return fmt::format("{} KiB", (bytes + limits::kKiB - 1) / limits::kKiB);
  if (bytes < 10 * 1024 * limits::kMiB) return fmt::format("{} MiB", bytes / limits::kMiB);
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(1024 * limits::kMiB));
}

/// "/a/b" of "b/" in /a.
Result<std::string> absolute(const std::string& path) {
  if (path.empty()) return fail(ErrorKind::kEnvironment, "the directory's name is empty");
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (error) {
    return fail(ErrorKind::kEnvironment, "there is no working directory that {} could be in: {}", path,
                error.message());
  }
  std::string text = whole.has_filename() ? whole : whole.parent_path();
  // The server would be told of another directory, and make that one.
  if (!schema::is_valid_utf8(text)) {
    return fail(ErrorKind::kEnvironment, "the directory's whole path is not UTF-8: name one whose path is");
  }
  return text;
}

/// What is shown of a backup that takes long: one line that changes on a terminal, else a line now and then.
class Progress {
 public:
  ~Progress() {
    if (is_shown_ && is_terminal_) std::fputs("\n", stderr);
  }
  void show(uint64_t bytes_done, uint64_t bytes_total) {
    const SteadyTime now = Clock::system().now();
    if (now < show_next_ || bytes_total == 0) return;
    fmt::print(stderr, "{}{} of {} ({} %){}", is_terminal_ ? "\r\033[K" : "", human(bytes_done), human(bytes_total),
               bytes_done * 100 / bytes_total, is_terminal_ ? "" : "\n");
    std::fflush(stderr);
    is_shown_ = true;
    if (!is_terminal_) show_next_ = now + kShowEvery;
  }

 private:
  const bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  SteadyTime show_next_ = Clock::system().now() + kShowAfter;
  bool is_shown_ = false;
};

/// A server that was killed cannot do it. Its lock goes with it, a moment after its connections.
void clean_up_behind(const std::string& directory) {
  const SteadyTime until = Clock::system().now() + kCleanPatience;
  while (!store::remove_incomplete_backup(directory) && Clock::system().now() < until) ::poll(nullptr, 0, kPollMs);
}

bool is_there(const std::string& directory) {
  std::error_code error;
  return std::filesystem::exists(fmt::format("{}/{}", directory, store::DataDir::kDatabaseName), error);
}

Result<json> ask(const BackupOptions& options, const std::string& directory) {
  auto server = ControlConnection::connect(options.data_dir);
  if (!server) return fail(server.error());
  server->send({{"command", "backup"}, {"directory", directory}});
  Progress progress;
  while (auto line = server->receive()) {
    if (line->contains("result")) return std::move((*line)["result"]);
    if (line->contains("error")) return fail(ErrorKind::kEnvironment, "{}", (*line)["error"].get<std::string>());
    progress.show(line->value("bytes_done", uint64_t{0}), line->value("bytes_total", uint64_t{0}));
  }
  clean_up_behind(directory);
  return fail(ErrorKind::kEnvironment, "the server ended before it said that the backup is there");
}

int say_nothing_was_saved(const Error& why) {
  fmt::print(stderr, "kcoral backup: nothing was saved: {}\n", why.message);
  return 1;
}

}  // namespace

int run_backup(const BackupOptions& options) {
  const auto directory = absolute(options.directory);
  if (!directory) return say_nothing_was_saved(directory.error());
  const bool was_there = is_there(*directory);
  const auto made = ask(options, *directory);
  if (!made && !was_there && is_there(*directory)) {
    fmt::print(stderr, "kcoral backup: {} is there, and whole, but: {}\n", *directory, made.error().message);
    return 1;
  }
  if (!made) return say_nothing_was_saved(made.error());
  const auto bytes_shared = made->value("bytes_shared", uint64_t{0});
  fmt::print("saved {} requests, {}{}, in {:.1f} s; to start from it: kcoral server --data-dir {}\n",
             made->value("requests", uint64_t{0}), human(made->value("bytes", uint64_t{0})),
             bytes_shared > 0 ? fmt::format(" ({} in files shared with the server's own)", human(bytes_shared)) : "",
             made->value("seconds", 0.0), *directory);
  return 0;
}

}  // namespace kcoral::server
