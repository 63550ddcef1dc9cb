// kcoral-executor with a clock that a test moves: milliseconds, one number a line, through the pipe "clock" beside its
// bin directory. What it waits for by its own clock ends at once then; its processes notice nothing.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/log.h"
#include "executor/frame.h"
#include "executor/supervisor/supervisor.h"
#include "tests/unit/executor/shifted_clock.h"

int main(int argc, char** argv) {
  using namespace kcoral;
  using namespace kcoral::executor;
  if (argc != 3) return 64;
  start_log("executor " + std::string(argv[1]));
  spdlog::set_level(spdlog::level::from_str(argv[2]));
  std::signal(SIGPIPE, SIG_IGN);
  const auto executable = own_executable();
  const auto paths = find_install_paths(*executable);
  const auto prefix = std::filesystem::path(*executable).parent_path().parent_path();
  // For writing, too: then it has no end.
  std::FILE* const moves = ::fdopen(::open((prefix / "clock").c_str(), O_RDWR | O_CLOEXEC), "r");
  if (moves == nullptr) return 1;
  static ShiftedClock clock;
  auto loop = EventLoop::create(clock);
  auto supervisor = Supervisor::create(**loop, *paths, UniqueFd(kServerFd));
  if (!supervisor) return 1;
  std::thread([moves, loop = loop->get()] {
    for (long ms = 0; std::fscanf(moves, "%ld", &ms) == 1;) {
      clock.advance(std::chrono::milliseconds(ms));
      loop->post([] {});
    }
  }).detach();
  (*loop)->run();
  supervisor->reset();
  std::_Exit(0);  // the other thread still reads
}
