#include "base/failpoint.h"

#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <string>

namespace kcoral {

namespace failpoints_internal {
namespace {

constexpr size_t kNone = std::size(kFailpoints);

size_t deadly = kNone;
uint64_t deadly_pass = 1;
std::array<std::atomic<uint64_t>, std::size(kFailpoints)> passes;

/// One write: lines of several threads and processes do not mix.
void say(std::string_view what, size_t index) {
  const std::string line = fmt::format("failpoint {} {}\n", kFailpoints[index], what);
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

Status set_deadly(std::string_view setting) {
  const std::string_view name = setting.substr(0, setting.find(':'));
  deadly = static_cast<size_t>(std::ranges::find(kFailpoints, name) - kFailpoints);
  if (deadly == kNone) {
    return fail(ErrorKind::kEnvironment, "KCORAL_FAILPOINT: there is no \"{}\"; there are: {}", name,
                fmt::join(kFailpoints, " "));
  }
  if (name.size() == setting.size()) return {};
  const std::string_view number = setting.substr(name.size() + 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), deadly_pass);
  if (error != std::errc() || end != number.data() + number.size() || deadly_pass == 0) {
    return fail(ErrorKind::kEnvironment, "KCORAL_FAILPOINT: \"{}\" is no count of passes from 1", number);
  }
  return {};
}

}  // namespace

constinit std::atomic<bool> armed{false};

void pass(size_t index) {
  const uint64_t count = ++passes[index];
  if (count == 1) say("passed", index);
  if (index != deadly || count != deadly_pass) return;
  say("kills", index);
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

}  // namespace failpoints_internal

Status arm_failpoints(const char* setting) {
  namespace internal = failpoints_internal;
  if (setting == nullptr) return {};
  const std::string_view text(setting);
  if (text != "note") {
    if (auto set = internal::set_deadly(text); !set) return set;
  }
  internal::armed = true;
  return {};
}

}  // namespace kcoral
