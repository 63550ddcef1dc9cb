#include "server/backup_service.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::server {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto kTellEvery = 200ms;
constexpr int kAcceptAgainMs = 100;

}  // namespace

Result<std::unique_ptr<BackupService>> BackupService::start(store::Store& store, const std::string& data_dir) {
  auto listener = listen_for_commands(data_dir);
  if (!listener) return fail(listener.error());
  UniqueFd closing(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!closing) return fail_errno("eventfd");
  std::unique_ptr<BackupService> service(new BackupService(store, std::move(*listener), std::move(closing)));
  service->thread_ = std::thread([service = service.get()] { service->run(); });
  ::pthread_setname_np(service->thread_.native_handle(), "backup");
  return service;
}

BackupService::~BackupService() {
  closing_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(closing_fd_.get(), &one, sizeof one);
  if (thread_.joinable()) thread_.join();
}

void BackupService::run() {
  while (!closing_) {
    std::array<pollfd, 2> waited = {pollfd{listener_.get(), POLLIN, 0}, pollfd{closing_fd_.get(), POLLIN, 0}};
    if (::poll(waited.data(), waited.size(), -1) < 0 && errno != EINTR) {
      spdlog::error("no backups are made until the next start: poll: {}", std::strerror(errno));
      return;
    }
    if (closing_) return;
    if (auto client = ControlConnection::accept(listener_.get())) {
      serve(std::move(*client));
    } else {
      // Without a descriptor for it whoever has connected stays in line, and `poll` would not wait.
      ::poll(&waited[1], 1, kAcceptAgainMs);
    }
  }
}

void BackupService::serve(ControlConnection client) {
  const auto request = client.receive(Clock::system().now() + limits::kControlPatience, closing_fd_.get());
  if (!request) return;
  const json directory = request->value("directory", json());
  if (request->value("command", json()) == "backup" && directory.is_string()) {
    return back_up(client, directory.get<std::string>());
  }
  client.send({{"error", "this server knows no such command"}});
}

void BackupService::back_up(ControlConnection& client, const std::string& directory) {
  const SteadyTime begun = Clock::system().now();
  SteadyTime tell_next = begun;
  const auto progress = [&](uint64_t bytes_done, uint64_t bytes_total) {
    refuse_others();
    if (const SteadyTime now = Clock::system().now(); now >= tell_next) {
      client.send_if_read({{"bytes_done", bytes_done}, {"bytes_total", bytes_total}});
      tell_next = now + kTellEvery;
    }
    return !closing_ && !client.has_hung_up();
  };
  const auto made = store_.back_up(directory, progress);
  if (!made) {
    const bool is_cut_short = closing_ && made.error().kind == ErrorKind::kCancelled;
    const std::string why = is_cut_short ? "the server is shutting down" : made.error().message;
    spdlog::warn("no backup to {}: {}", directory, why);
    return client.send({{"error", why}});
  }
  const std::chrono::duration<double> seconds = Clock::system().now() - begun;
  spdlog::info("backup to {}: {} requests, {} bytes, {:.1f} s", directory, made->requests, made->bytes,
               seconds.count());
  client.send({{"result",
                {{"requests", made->requests},
                 {"bytes", made->bytes},
                 {"bytes_shared", made->bytes_shared},
                 {"seconds", seconds.count()}}}});
}

void BackupService::refuse_others() {
  while (auto other = ControlConnection::accept(listener_.get())) {
    other->send({{"error", "another backup is being made: try again when it is there"}});
  }
}

}  // namespace kcoral::server
