/* kcoral-init: the first process of a pid namespace. A static C program, so that it starts in well under a millisecond
 * and needs nothing of the file system around it.
 *
 * Two modes:
 *
 *   kcoral-init
 *     Pid 1 of one program's namespace, started by the zygote. It drops its capabilities, then only exists: orphans are
 *     reaped (so that the runtime can be an ordinary process whose wait status is true), and when it is killed from
 *     outside the kernel kills everything else in the namespace. It never ends by itself.
 *
 *   kcoral-init zygote -- COMMAND ARGS...
 *     Makes the user, mount, pid, ipc and net namespaces in which a slot's zygote lives, as an unprivileged user, and
 *     executes COMMAND as pid 1 of that pid namespace with CAP_SYS_ADMIN (over these namespaces, not over the host) and
 *     no other capability. This happens before COMMAND exists because making a user namespace needs a single-threaded
 *     process, and an interpreter that imports NumPy is none. The outer process waits, passes on COMMAND's exit status
 *     (128 + signal when it was killed) and dies with it, as it does with us. If descriptor 3 is a socket and its peer
 *     is closed, both end at once: so ends a slot whose executor has gone, or wants it to end, however far it is.
 *
 * When the kernel refuses something, one line on standard error says what, and the exit status is kRefused: the
 * environment is at fault, and unless the line tells of a shortage trying again will not help.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kRefused = 78 /* EX_CONFIG */, kUsage = 64 /* EX_USAGE */, kNotExecutable = 127 };
enum { kControl = 3 /* the zygote's socket to the executor */ };

static void refuse(const char* what, const char* hint) {
  const int number = errno;
  fprintf(stderr, "kcoral-init: %s: %s%s%s\n", what, strerror(number), *hint ? "; " : "", hint);
  exit(kRefused);
}

/* Takes all but the capabilities of `kept` (a mask) out of the bounding set, where that still can be done: it needs
 * CAP_SETPCAP. Before keep_capabilities, which gives that up. */
static void bound_capabilities(unsigned long long kept) {
  for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability) {
    if (kept >> capability & 1) continue;
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EPERM)
      refuse("cannot shrink the bounding set", "");
  }
}

/* Leaves exactly the capabilities of `kept` in the other sets of this process. */
static void keep_capabilities(unsigned long long kept) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct sets[2] = {{0}};
  for (int half = 0; half < 2; ++half) {
    const unsigned mask = (unsigned)(kept >> (32 * half));
    sets[half].effective = sets[half].permitted = sets[half].inheritable = mask;
  }
  if (syscall(SYS_capset, &header, sets) != 0) refuse("cannot drop capabilities", "");
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) refuse("cannot clear ambient capabilities", "");
}

static void no_new_privileges(void) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) refuse("cannot give up new privileges", "");
}

static _Noreturn void exist_as_init(void) {
  /* The file is called "init" inside a slot: on the host this says whose. */
  prctl(PR_SET_NAME, "kcoral-init");
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setsid(); /* away from the zygote's process group, which nothing of a program may reach */
  /* A program's init is started often: the bounding set stays, since under no_new_privs no execve takes from it. */
  no_new_privileges();
  keep_capabilities(0);
  /* The program runs as the same user: without this it could trace us and end its own namespace from inside. */
  prctl(PR_SET_DUMPABLE, 0);
  if (chdir("/") != 0) refuse("chdir /", "");
  close_range(0, ~0u, 0);
  /* With SIGCHLD ignored the kernel reaps orphans by itself, those included that were dead when we inherited them. */
  signal(SIGCHLD, SIG_IGN);
  for (;;) pause();
}

static void write_text(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) refuse(path, "");
  close(fd);
}

static void make_namespaces(void) {
  const unsigned uid = getuid(), gid = getgid();
  if (uid == 0) {
    fprintf(stderr, "kcoral-init: a zygote never runs as uid 0\n");
    exit(kRefused);
  }
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET) != 0) {
    refuse("cannot make user, mount, pid, ipc and net namespaces",
           "unprivileged user namespaces must be allowed (sysctl user.max_user_namespaces, "
           "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)");
  }
  char map[64];
  write_text("/proc/self/setgroups", "deny");
  snprintf(map, sizeof map, "%u %u 1", uid, uid);
  write_text("/proc/self/uid_map", map);
  snprintf(map, sizeof map, "%u %u 1", gid, gid);
  write_text("/proc/self/gid_map", map);
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) refuse("cannot make the mounts private", "");
}

/* A network of the slot's own, in which there is only loopback. It outlives each program, so nothing of a program may
 * stay in it: its sockets end with it, and connections that it closed must not wait there either (TIME_WAIT would keep
 * a port from the next program for a minute). */
static void make_network(void) {
  const int socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  if (socket_fd < 0 || ioctl(socket_fd, SIOCSIFFLAGS, &loopback) != 0) refuse("cannot bring loopback up", "");
  close(socket_fd);
  write_text("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0");
}

static int is_socket(int fd) {
  int type;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
}

/* The outer process: holds nothing but standard error, the socket, a pidfd, and `alive`, whose closing says that it
 * died. */
static int wait_for_zygote(pid_t zygote, int alive) {
  no_new_privileges();
  bound_capabilities(0);
  keep_capabilities(0);
  int ended = (int)syscall(SYS_pidfd_open, zygote, 0);
  if (ended < 0) refuse("pidfd_open", "");
  const int lowest = kControl + 1;
  alive = fcntl(alive, F_DUPFD, lowest);
  ended = fcntl(ended, F_DUPFD, lowest);
  if (alive < 0 || ended < 0 || dup2(alive, lowest) < 0 || dup2(ended, lowest + 1) < 0) refuse("dup2", "");
  close_range(0, STDERR_FILENO - 1, 0);
  close_range(lowest + 2, ~0u, 0);
  struct pollfd waited[] = {{lowest + 1, POLLIN, 0}, {is_socket(kControl) ? kControl : -1, 0, 0}};
  while (poll(waited, 2, -1) < 0) {
    if (errno != EINTR) refuse("poll", "");
  }
  if (!waited[0].revents) return 0;
  int status;
  while (waitpid(zygote, &status, 0) < 0) {
    if (errno != EINTR) refuse("waitpid", "");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The inner process, pid 1 of the new pid namespace. */
static int become_zygote(char** command, int outer_alive) {
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0) {
    refuse("cannot mount /proc in the zygote's namespace", "the /proc around it must not be partly covered");
  }
  make_network();
  /* No user namespaces below ours. The programs' seccomp filter refuses them already; where the kernel lets us, this is
   * a second reason. */
  const int namespaces_max = open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC);
  if (namespaces_max >= 0) {
    if (write(namespaces_max, "0", 1) != 1) errno = 0;
    close(namespaces_max);
  }
  no_new_privileges();
  bound_capabilities(1ull << CAP_SYS_ADMIN);
  keep_capabilities(1ull << CAP_SYS_ADMIN);
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0) != 0) {
    refuse("cannot keep CAP_SYS_ADMIN for the zygote", "");
  }
  /* Last, because changes of credentials may reset it; then, in case the outer process died before it was set, a look
   * whether its end of the pipe is still open. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct pollfd outer = {outer_alive, 0, 0};
  if (poll(&outer, 1, 0) != 0) return kRefused;
  execv(command[0], command);
  fprintf(stderr, "kcoral-init: cannot execute %s: %s\n", command[0], strerror(errno));
  return kNotExecutable;
}

int main(int argc, char** argv) {
  if (argc == 1) exist_as_init();
  if (argc < 4 || strcmp(argv[1], "zygote") != 0 || strcmp(argv[2], "--") != 0) {
    fprintf(stderr, "usage: kcoral-init\n       kcoral-init zygote -- COMMAND ARGS...\n");
    return kUsage;
  }
  int alive[2];
  if (pipe2(alive, O_CLOEXEC) != 0) refuse("pipe", "");
  make_namespaces();
  const pid_t child = fork();
  if (child < 0) refuse("cannot start the first process of the pid namespace", "");
  if (child == 0) {
    close(alive[1]);
    return become_zygote(argv + 3, alive[0]);
  }
  close(alive[0]);
  return wait_for_zygote(child, alive[1]);
}
