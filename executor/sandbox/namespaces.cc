// Plain C in C++ clothes: no exceptions, no allocation, nothing of libstdc++ (the library is linked without it),
// because it runs in the interpreter of somebody else's choice, in the child of a fork.
#include "executor/sandbox/namespaces.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#define KCORAL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

/// Where a message for people goes. Every failing step returns what `failed` returns.
class Report {
 public:
  Report(char* error, size_t error_size) : error_(error), error_size_(error_size) {}

  int failed(const char* what, const char* subject = "") const {
    const int number = errno;
    return refused(what, subject, strerror(number));
  }

  int refused(const char* what, const char* subject, const char* why) const {
    if (error_ != nullptr && error_size_ > 0) {
      snprintf(error_, error_size_, "%s%s%s: %s", what, *subject != '\0' ? " " : "", subject, why);
    }
    return -1;
  }

 private:
  char* error_;
  size_t error_size_;
};

int mount_tmpfs(const char* target, const char* mode, uint64_t size_bytes, const Report& report) {
  char options[64];
  if (size_bytes > 0) {
    snprintf(options, sizeof options, "mode=%s,size=%llu", mode, static_cast<unsigned long long>(size_bytes));
  } else {
    snprintf(options, sizeof options, "mode=%s", mode);
  }
  if (mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options) != 0)
    return report.failed("mount tmpfs on", target);
  return 0;
}

int make_mounts(const kcoral_program_limits& limits, const Report& report) {
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return report.failed("make mounts private");
  if (mount_tmpfs("/work", "0700", limits.work_bytes, report) != 0) return -1;
  if (mount_tmpfs("/tmp", "1777", limits.tmp_bytes, report) != 0) return -1;
  if (mount_tmpfs("/dev/shm", "1777", limits.shm_bytes, report) != 0) return -1;
  if (mount_tmpfs("/run/kcoral", "0700", limits.private_bytes, report) != 0) return -1;
  // HOME, as the slot's environment names it.
  if (mkdir("/run/kcoral/home", 0700) != 0) return report.failed("mkdir", "/run/kcoral/home");
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    return report.failed("mount", "/proc");
  }
  if (chdir("/work") != 0) return report.failed("chdir", "/work");
  return 0;
}

/// `hard_margin`: how far the limit that cannot be raised again lies above the one that is felt first.
int set_limit(__rlimit_resource resource, uint64_t value, uint64_t hard_margin, const char* name,
              const Report& report) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return report.failed("getrlimit", name);
  // Never above what the operator's own limits allow: raising would be refused.
  if (limit.rlim_max == RLIM_INFINITY || value + hard_margin < limit.rlim_max) limit.rlim_max = value + hard_margin;
  limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
  if (setrlimit(resource, &limit) != 0) return report.failed("setrlimit", name);
  return 0;
}

/// The kernel counts descriptors in flight between processes for each user, and refuses a sender whose own limit on
/// open files is below that count. Far below the zygote's and the executor's limit, a program that has filled its share
/// cannot keep them from sending.
uint64_t open_files_limit(uint64_t wanted) {
  rlimit own;
  if (getrlimit(RLIMIT_NOFILE, &own) != 0 || own.rlim_max == RLIM_INFINITY) return wanted;
  const uint64_t share = own.rlim_max / 4;
  return wanted < share ? wanted : share;
}

int set_limits(const kcoral_program_limits& limits, const Report& report) {
  // A dump would hold the program's data, in a place that depends on the host.
  if (set_limit(RLIMIT_CORE, 0, 0, "RLIMIT_CORE", report) != 0) return -1;
  if (limits.file_size_bytes > 0 && set_limit(RLIMIT_FSIZE, limits.file_size_bytes, 0, "RLIMIT_FSIZE", report) != 0) {
    return -1;
  }
  if (limits.open_files > 0 &&
      set_limit(RLIMIT_NOFILE, open_files_limit(limits.open_files), 0, "RLIMIT_NOFILE", report) != 0) {
    return -1;
  }
  if (limits.processes > 0 && set_limit(RLIMIT_NPROC, limits.processes, 0, "RLIMIT_NPROC", report) != 0) return -1;
  // SIGXCPU first, which says what happened; SIGKILL a second later for those who ignore it.
  if (limits.cpu_seconds > 0 && set_limit(RLIMIT_CPU, limits.cpu_seconds, 1, "RLIMIT_CPU", report) != 0) return -1;
  return 0;
}

/// When the machine runs out of memory the kernel ends programs, not the server or a zygote. A program can undo it.
int be_first_out_of_memory(const Report& report) {
  constexpr const char* kPath = "/proc/self/oom_score_adj";
  constexpr std::string_view kHighest = "1000";
  const int fd = open(kPath, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return report.failed("open", kPath);
  const bool written = write(fd, kHighest.data(), kHighest.size()) == static_cast<ssize_t>(kHighest.size());
  if (!written) report.failed("write", kPath);
  close(fd);
  return written ? 0 : -1;
}

int drop_privileges(const Report& report) {
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return report.failed("clear ambient capabilities");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  if (syscall(SYS_capset, &header, none) != 0) return report.failed("drop capabilities");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return report.failed("set no_new_privs");
  return 0;
}

int load_filter(const void* filter, size_t filter_bytes, const Report& report) {
  const size_t count = filter_bytes / sizeof(sock_filter);
  if (filter == nullptr || count == 0 || count > 0xffff || filter_bytes % sizeof(sock_filter) != 0) {
    return report.refused("load the seccomp filter", "", "it is no array of instructions");
  }
  const sock_fprog program{static_cast<unsigned short>(count), static_cast<sock_filter*>(const_cast<void*>(filter))};
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0) return report.failed("load the seccomp filter");
  return 0;
}

}  // namespace

KCORAL_EXPORT int kcoral_own_pid_namespace(int own_pid_namespace, char* error, size_t error_size) {
  if (setns(own_pid_namespace, CLONE_NEWPID) != 0) {
    return Report(error, error_size).failed("return to the zygote's pid namespace");
  }
  return 0;
}

KCORAL_EXPORT int kcoral_new_pid_namespace(int own_pid_namespace, char* error, size_t error_size) {
  // First back to our own: a new namespace nests in the one that the next child would be in, and the last program's is
  // dead.
  if (kcoral_own_pid_namespace(own_pid_namespace, error, error_size) != 0) return -1;
  if (unshare(CLONE_NEWPID) != 0) return Report(error, error_size).failed("make a pid namespace");
  return 0;
}

KCORAL_EXPORT int kcoral_enter_program(const kcoral_program_limits* limits, const void* filter, size_t filter_bytes,
                                       char* error, size_t error_size) {
  const Report report(error, error_size);
  umask(0022);
  // A session and process group of its own: a signal to "my group" must not reach the zygote, whose group it was born
  // in.
  if (setsid() < 0) return report.failed("make a session");
  if (unshare(CLONE_NEWNS | CLONE_NEWIPC) != 0) return report.failed("make mount and ipc namespaces");
  if (make_mounts(*limits, report) != 0) return -1;
  if (be_first_out_of_memory(report) != 0) return -1;
  if (set_limits(*limits, report) != 0) return -1;
  if (drop_privileges(report) != 0) return -1;
  return load_filter(filter, filter_bytes, report);
}
