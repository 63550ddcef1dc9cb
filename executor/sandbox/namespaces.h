/* The C interface of libkcoral_sandbox.so, which a zygote loads with ctypes: what a program's namespaces are made with.
 *
 * Theory of operation (ARCHITECTURE.md, "Sandbox"): `kcoral-init zygote` has put the zygote, as an unprivileged user,
 * into user, mount and pid namespaces of its own, in which it holds CAP_SYS_ADMIN and nothing else. For each program
 * the zygote
 *   1. calls kcoral_new_pid_namespace, so that its next child is pid 1 of a fresh pid namespace,
 *   2. starts kcoral-init as that child (posix_spawn), then forks the runtime, which is pid 2,
 *   3. calls kcoral_own_pid_namespace, so that later children are ordinary ones again;
 * and the runtime calls kcoral_enter_program before it reads anything of the program.
 *
 * The library needs nothing but libc. Every function returns 0, or -1 with a message for people in `error`.
 * Not thread-safe: called from a single-threaded zygote and from its forks.
 */
#ifndef KCORAL_EXECUTOR_SANDBOX_NAMESPACES_H_
#define KCORAL_EXECUTOR_SANDBOX_NAMESPACES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The limits of one program. 0 means that the kernel's own limit stays. */
struct kcoral_program_limits {
  uint64_t work_bytes;      /* tmpfs on /work: the working directory; a write beyond it is ENOSPC */
  uint64_t tmp_bytes;       /* tmpfs on /tmp */
  uint64_t shm_bytes;       /* tmpfs on /dev/shm */
  uint64_t private_bytes;   /* tmpfs on /run/kcoral: HOME and the sources of uploaded modules */
  uint64_t file_size_bytes; /* RLIMIT_FSIZE; beyond it a write is EFBIG */
  uint64_t open_files;      /* RLIMIT_NOFILE, at most a quarter of the zygote's */
  uint64_t processes;       /* RLIMIT_NPROC */
  uint64_t cpu_seconds;     /* RLIMIT_CPU */
};

/* Both are called by the zygote with a descriptor of its own pid namespace (/proc/self/ns/pid, opened at start). */
int kcoral_new_pid_namespace(int own_pid_namespace, char* error, size_t error_size);
int kcoral_own_pid_namespace(int own_pid_namespace, char* error, size_t error_size);

/* Called by the runtime, once: own mount and ipc namespaces; fresh tmpfs on /work, /tmp, /dev/shm and /run/kcoral; its
 * own /proc; working directory /work; a session of its own; limits; first to be ended when memory runs out; no
 * capabilities; no new privileges; the seccomp filter `filter` (an array of struct sock_filter of `filter_bytes` bytes,
 * as libseccomp exports it). */
int kcoral_enter_program(const struct kcoral_program_limits* limits, const void* filter, size_t filter_bytes,
                         char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

#endif /* KCORAL_EXECUTOR_SANDBOX_NAMESPACES_H_ */
