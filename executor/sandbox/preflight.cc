#include "executor/sandbox/preflight.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "executor/child_process.h"
#include "executor/sandbox/bubblewrap.h"

namespace kcoral::executor {
namespace {

constexpr int kFirstInputFd = 10;
constexpr std::chrono::seconds kTimeMax{20};

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "it said nothing";
  const size_t begin = text.find_last_of('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

/// What bubblewrap says when the kernel refuses one of its first steps does not tell what to do about it. Where
/// AppArmor restricts user namespaces, making one succeeds and what it is for does not.
std::string hint(const std::string& said) {
  constexpr const char* kFirstSteps[] = {"namespace", "uid map", "gid map", "RTM_NEWADDR"};
  const auto is_said = [&](const char* step) { return said.find(step) != std::string::npos; };
  if (!said.starts_with("bwrap:") || std::none_of(std::begin(kFirstSteps), std::end(kFirstSteps), is_said)) return "";
  return "; unprivileged user namespaces must be allowed (sysctl user.max_user_namespaces, "
         "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns; in a container: its seccomp "
         "profile)";
}

}  // namespace

Status check_sandbox(const InstallPaths& paths, uid_t uid, gid_t gid) {
  SlotSpec slot;
  slot.uid = uid;
  slot.gid = gid;
  slot.python = "/usr/bin/true";
  auto files = load_slot_files(paths);
  if (!files) return fail(files.error());
  slot.files = std::move(*files);
  auto bubblewrap = open_bubblewrap(paths);
  if (!bubblewrap) return fail(bubblewrap.error());
  slot.bubblewrap = std::move(*bubblewrap);
  auto command = make_slot_command(slot, {slot.python}, kFirstInputFd);
  if (!command) return fail(command.error());

  ProcessSpec spec;
  spec.arguments = std::move(command->arguments);
  spec.open_program = slot.bubblewrap->file.get();
  for (const auto& [fd, content] : command->inputs) {
    ::lseek(content->fd(), 0, SEEK_SET);
    spec.fds.emplace_back(fd, content->fd());
  }
  if (::geteuid() == 0) spec.user = ProcessSpec::User{uid, gid};
  auto run = run_captured(std::move(spec), kTimeMax);
  if (!run) return fail(ErrorKind::kEnvironment, "the sandbox does not work here: {}", run.error().message);
  if (run->status == ExitStatus{}) return {};
  const std::string said = last_line(run->err);
  return fail(ErrorKind::kEnvironment, "the sandbox does not work here for uid {}: {} ({}){}", uid, said,
              describe(run->status), hint(said));
}

}  // namespace kcoral::executor
