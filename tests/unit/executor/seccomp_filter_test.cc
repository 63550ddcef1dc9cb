#include "executor/sandbox/seccomp_filter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

namespace kcoral::executor {
namespace {

/// errno of `call` under the filter, 0 when it succeeded; in a child that keeps its privileges, so that what is refused
/// is refused by the filter.
int under_filter(const std::function<long()>& call) {
  static const std::shared_ptr<const SealedMemory> filter = *make_program_filter();
  const std::string_view bytes = *filter->view();
  const pid_t child = ::fork();
  if (child == 0) {
    const sock_fprog program{static_cast<unsigned short>(bytes.size() / sizeof(sock_filter)),
                             reinterpret_cast<sock_filter*>(const_cast<char*>(bytes.data()))};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) ::_exit(251);
    if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) ::_exit(252);
    ::_exit(call() < 0 ? errno : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(SeccompFilter, RefusesWhatItLists) {
  const std::pair<const char*, long> calls[] = {
      {"mount", SYS_mount},
      {"umount2", SYS_umount2},
      {"pivot_root", SYS_pivot_root},
      {"open_tree", SYS_open_tree},
      {"move_mount", SYS_move_mount},
      {"fsopen", SYS_fsopen},
      {"fsconfig", SYS_fsconfig},
      {"fsmount", SYS_fsmount},
      {"fspick", SYS_fspick},
      {"mount_setattr", SYS_mount_setattr},
      {"chroot", SYS_chroot},
      {"setns", SYS_setns},
      {"bpf", SYS_bpf},
      {"perf_event_open", SYS_perf_event_open},
      {"userfaultfd", SYS_userfaultfd},
      {"io_uring_setup", SYS_io_uring_setup},
      {"io_uring_enter", SYS_io_uring_enter},
      {"io_uring_register", SYS_io_uring_register},
      {"keyctl", SYS_keyctl},
      {"add_key", SYS_add_key},
      {"request_key", SYS_request_key},
      {"open_by_handle_at", SYS_open_by_handle_at},
      {"name_to_handle_at", SYS_name_to_handle_at},
      {"kexec_load", SYS_kexec_load},
      {"kexec_file_load", SYS_kexec_file_load},
      {"init_module", SYS_init_module},
      {"finit_module", SYS_finit_module},
      {"delete_module", SYS_delete_module},
      {"swapon", SYS_swapon},
      {"swapoff", SYS_swapoff},
      {"acct", SYS_acct},
      {"quotactl", SYS_quotactl},
      {"syslog", SYS_syslog},
      {"vhangup", SYS_vhangup},
      {"settimeofday", SYS_settimeofday},
      {"clock_settime", SYS_clock_settime},
      {"clock_adjtime", SYS_clock_adjtime},
      {"adjtimex", SYS_adjtimex},
      {"sethostname", SYS_sethostname},
      {"setdomainname", SYS_setdomainname},
  };
  for (const auto& [name, number] : calls) {
    // With arguments that would fail otherwise, should the filter let it through: never EPERM for root.
    EXPECT_EQ(under_filter([number = number] { return ::syscall(number, -1L, -1L, -1L, -1L, -1L, -1L); }), EPERM)
        << name;
  }
  // reboot is asked for with numbers that the kernel refuses anyway.
  EXPECT_EQ(under_filter([] { return ::syscall(SYS_reboot, 0, 0, 0, nullptr); }), EPERM);
}

TEST(SeccompFilter, RefusesNewNamespacesOnly) {
  for (const unsigned long flag :
       {CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP, 0x80}) {
    EXPECT_EQ(under_filter([flag] { return ::syscall(SYS_unshare, flag); }), EPERM) << flag;
    EXPECT_EQ(under_filter([flag] { return ::syscall(SYS_unshare, flag | CLONE_FS); }), EPERM) << flag;
    if (flag == 0x80) continue;
    EXPECT_EQ(under_filter([flag] {
                const long child = ::syscall(SYS_clone, flag | SIGCHLD, 0, 0, 0, 0);
                if (child == 0) ::_exit(0);
                return child;
              }),
              EPERM)
        << flag;
  }
  EXPECT_EQ(under_filter([] { return ::syscall(SYS_unshare, CLONE_FS | CLONE_FILES); }), 0);
  EXPECT_EQ(under_filter([] { return ::syscall(SYS_clone3, nullptr, 0); }), ENOSYS);
  EXPECT_EQ(under_filter([] {
              const long child = ::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0);
              if (child == 0) ::_exit(0);
              return child;
            }),
            EPERM);
}

TEST(SeccompFilter, LeavesOrdinaryWorkAlone) {
  EXPECT_EQ(under_filter([] {
              const pid_t child = ::fork();
              if (child == 0) {
                ::execl("/bin/sh", "sh", "-c", "exit 0", nullptr);
                ::_exit(1);
              }
              int status = 0;
              return ::waitpid(child, &status, 0) == child && status == 0 ? 0L : -1L;
            }),
            0);
  EXPECT_EQ(under_filter([] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }), 0);
  EXPECT_EQ(under_filter([] {
              int available;
              std::array<int, 2> pipe;
              return ::pipe(pipe.data()) == 0 ? static_cast<long>(::ioctl(pipe[0], FIONREAD, &available)) : -1L;
            }),
            0);
}

TEST(SeccompFilter, RefusesTypingIntoTerminals) {
  for (const unsigned long request : {0x5412UL, 0x541CUL, 0xdead00005412UL}) {
    EXPECT_EQ(under_filter([request] { return ::syscall(SYS_ioctl, 0, request, "x"); }), EPERM) << request;
  }
}

}  // namespace
}  // namespace kcoral::executor
