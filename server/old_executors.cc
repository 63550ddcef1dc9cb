#include "server/old_executors.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/unique_fd.h"

namespace kcoral::server {
namespace {

std::string lock_dir(const std::string& data_dir) { return data_dir + "/executors"; }

/// The kernel has no wait for a lock with a time limit, and executors normally end within milliseconds.
constexpr int kPollMs = 10;

Status wait_for_lock(const std::string& path, SteadyTime until, int interrupt) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) return fail_errno("open", path);
  bool said = false;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail_errno("flock", path);
    if (Clock::system().now() >= until) {
      return fail(ErrorKind::kEnvironment, "an executor of an earlier server still runs (it holds {}); end it first",
                  path);
    }
    if (!std::exchange(said, true)) spdlog::info("waiting for an executor of an earlier server to end ({})", path);
    pollfd interrupted{interrupt, POLLIN, 0};
    if (::poll(&interrupted, 1, kPollMs) > 0) {
      return fail(ErrorKind::kEnvironment, "stopped while an executor of an earlier server still ran");
    }
  }
  return {};
}

}  // namespace

std::string executor_lock_path(const std::string& data_dir, uint32_t slot) {
  return fmt::format("{}/slot-{}.lock", lock_dir(data_dir), slot);
}

Status wait_for_old_executors(const std::string& data_dir, std::chrono::seconds limit, int interrupt) {
  const std::string directory = lock_dir(data_dir);
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno("mkdir", directory);
  const SteadyTime until = Clock::system().now() + limit;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (auto free = wait_for_lock(entry.path(), until, interrupt); !free) return free;
  }
  if (error) return fail(ErrorKind::kEnvironment, "{}: {}", directory, error.message());
  return {};
}

}  // namespace kcoral::server
