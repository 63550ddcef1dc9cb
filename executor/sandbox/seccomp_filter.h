// The system calls that a program does not get.
//
// The namespaces decide what a program can reach; this filter keeps it from making new ones and from the parts of the
// kernel that no experiment needs and that have been the way out of sandboxes. It allows by default: numerical
// libraries use much, and new system calls appear with every kernel. Refused, and why:
//
//   mount, umount2, pivot_root, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr, chroot
//       what the program sees of the file system is decided before it starts
//   unshare and clone with a CLONE_NEW* flag, setns
//       a new user namespace would give back every capability inside it, and with them most of the kernel
//   clone3 (ENOSYS)
//       its flags lie in memory where a filter cannot look; libc falls back to clone
//   bpf, perf_event_open, userfaultfd, io_uring_*
//       large, young interfaces with a long record of privilege escalation; io_uring also passes every filter by
//   keyctl, add_key, request_key
//       keyrings belong to the user, not to a namespace: they would carry state from one program to the next
//   open_by_handle_at, name_to_handle_at
//       files by number instead of by path: the classic way round a mount namespace
//   kexec_*, reboot, init_module, finit_module, delete_module, swapon, swapoff, acct, quotactl, quotactl_fd, syslog,
//   vhangup, nfsservctl, ioperm, iopl, settimeofday, clock_settime, clock_adjtime, adjtimex, sethostname, setdomainname
//       the machine's administration; without capabilities they fail anyway
//   ioctl TIOCSTI and TIOCLINUX
//       typing into somebody's terminal
//   every call of another architecture's ABI (ENOSYS): 32-bit and x32 calls would have other numbers
//
// Everything is refused with EPERM unless it says ENOSYS. ptrace and process_vm_* stay: a program sees only its own
// processes, and debuggers and profilers use them.
#pragma once

#include <memory>

#include "base/error.h"
#include "base/memfd.h"

namespace kcoral::executor {

/// The filter as kcoral_enter_program takes it: an array of struct sock_filter.
Result<std::shared_ptr<const SealedMemory>> make_program_filter();

}  // namespace kcoral::executor
