#include "bench/floor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string_view>
#include <thread>

#include "base/unique_fd.h"

namespace kcoral::bench {
namespace {

constexpr uid_t kUnprivileged = 65534;

void write_text(const char* path, std::string_view text) {
  const UniqueFd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) < 0) ::_exit(2);
}

void enter_namespaces() {
  if (::geteuid() == 0 &&
      (::setgroups(0, nullptr) != 0 || ::setgid(kUnprivileged) != 0 || ::setuid(kUnprivileged) != 0)) {
    ::_exit(2);
  }
  // A process that changed its user may not write its own id maps otherwise.
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  const std::string id = std::to_string(::getuid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID) != 0) ::_exit(3);
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", id + " " + id + " 1");
  write_text("/proc/self/gid_map", std::to_string(::getgid()) + " " + std::to_string(::getgid()) + " 1");
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(4);
}

/// What the runtime does between its fork and "ready", without Python.
void live_an_empty_program() {
  bool ok = ::unshare(CLONE_NEWNS | CLONE_NEWIPC) == 0;
  for (const char* target : {"/tmp", "/mnt", "/dev/shm"}) {
    ok = ok && ::mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, "size=64m") == 0;
  }
  // In a nested pid namespace some systems refuse a new /proc where parts of the old one are covered.
  ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr);
  ::_exit(ok ? 0 : 5);
}

/// Runs in a child of its own, which stays in the namespaces; latencies come back through `out`.
void namespace_rounds(int rounds, int out) {
  enter_namespaces();
  // Only a process inside the pid namespace that we own may return to it by setns.
  if (const pid_t inner = ::fork(); inner != 0) {
    int status = 0;
    ::waitpid(inner, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 9);
  }
  const UniqueFd own(::open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
  for (int i = 0; i < rounds; ++i) {
    const Stopwatch watch;
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(6);
    const pid_t child = ::fork();
    if (child == 0) live_an_empty_program();
    int status = 0;
    if (::waitpid(child, &status, 0) != child || status != 0) ::_exit(7);
    const double ms = watch.ms();
    if (::write(out, &ms, sizeof ms) != sizeof ms) ::_exit(8);
    // A pid namespace whose first process has ended takes no more: back to our own before the next.
    ::setns(own.get(), CLONE_NEWPID);
  }
  ::_exit(0);
}

}  // namespace

Result<Series> measure_namespaces(int rounds) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe2");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  Series series;
  const Stopwatch watch;
  const pid_t child = ::fork();
  if (child == 0) namespace_rounds(rounds, write_end.get());
  write_end.reset();
  for (double ms; ::read(read_end.get(), &ms, sizeof ms) == sizeof ms;) series.ms.push_back(ms);
  series.seconds = watch.ms() / 1e3;
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) return fail(ErrorKind::kEnvironment, "the namespace floor failed in step {}", WEXITSTATUS(status));
  return series;
}

Result<Series> measure_sync(const std::string& directory, int rounds) {
  const std::string path = directory + "/sync-floor";
  const UniqueFd file(::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600));
  if (!file) return fail_errno("open", path);
  const std::string page(4096, 'x');
  Series series;
  const Stopwatch whole;
  for (int i = 0; i < rounds; ++i) {
    const Stopwatch watch;
    if (::write(file.get(), page.data(), page.size()) < 0 || ::fdatasync(file.get()) != 0)
      return fail_errno("write", path);
    series.ms.push_back(watch.ms());
  }
  series.seconds = whole.ms() / 1e3;
  ::unlink(path.c_str());
  return series;
}

Result<Series> measure_loopback(int rounds) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return fail_errno("listen", "127.0.0.1");
  }
  const int on = 1;
  std::thread echo([&] {
    const UniqueFd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ::setsockopt(peer.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (char byte; ::recv(peer.get(), &byte, 1, 0) == 1;) ::send(peer.get(), &byte, 1, MSG_NOSIGNAL);
  });
  Series series;
  {
    const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const bool connected = ::connect(client.get(), reinterpret_cast<sockaddr*>(&address), length) == 0;
    const Stopwatch whole;
    for (int i = 0; connected && i < rounds; ++i) {
      const Stopwatch watch;
      char byte = 'x';
      if (::send(client.get(), &byte, 1, MSG_NOSIGNAL) != 1 || ::recv(client.get(), &byte, 1, 0) != 1) break;
      series.ms.push_back(watch.ms());
    }
    series.seconds = whole.ms() / 1e3;
  }
  echo.join();
  if (series.ms.size() != static_cast<size_t>(rounds)) return fail(ErrorKind::kEnvironment, "loopback broke");
  return series;
}

}  // namespace kcoral::bench
