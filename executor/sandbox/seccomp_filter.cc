#include "executor/sandbox/seccomp_filter.h"

#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <limits>
#include <string>
#include <utility>

namespace kcoral::executor {
namespace {

// Not in every libc's sched.h.
constexpr uint64_t kCloneNewTime = 0x80;
constexpr uint64_t kTiocLinux = 0x541C;
// The kernel takes at most 65535 instructions of 8 bytes.
constexpr uint64_t kFilterBytesMax = 512 * 1024;

/// Collects rules and keeps the first failure.
class FilterBuilder {
 public:
  FilterBuilder() : context_(seccomp_init(SCMP_ACT_ALLOW)) {}
  ~FilterBuilder() {
    if (context_ != nullptr) seccomp_release(context_);
  }
  FilterBuilder(const FilterBuilder&) = delete;
  FilterBuilder& operator=(const FilterBuilder&) = delete;

  bool started() const { return context_ != nullptr; }
  int first_failure() const { return failure_; }

  void set(scmp_filter_attr attribute, uint32_t value) { note(seccomp_attr_set(context_, attribute, value)); }
  void refuse(int call, int number = EPERM) {
    note(seccomp_rule_add_array(context_, SCMP_ACT_ERRNO(static_cast<uint16_t>(number)), call, 0, nullptr));
  }
  void refuse_flag(int call, unsigned argument, uint64_t flag) {
    refuse_where(call, {argument, SCMP_CMP_MASKED_EQ, flag, flag});
  }
  /// ioctl numbers are 32 bits wide; the kernel ignores what stands above.
  void refuse_ioctl(uint64_t request) {
    refuse_where(SCMP_SYS(ioctl), {1, SCMP_CMP_MASKED_EQ, std::numeric_limits<uint32_t>::max(), request});
  }
  void export_to(int fd) { note(seccomp_export_bpf(context_, fd)); }

 private:
  void refuse_where(int call, scmp_arg_cmp comparison) {
    note(seccomp_rule_add_array(context_, SCMP_ACT_ERRNO(EPERM), call, 1, &comparison));
  }
  void note(int result) {
    if (result < 0 && failure_ == 0) failure_ = -result;
  }

  scmp_filter_ctx context_;
  int failure_ = 0;
};

constexpr int kRefused[] = {
    // the file system
    SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(open_tree), SCMP_SYS(move_mount),
    SCMP_SYS(fsopen), SCMP_SYS(fsconfig), SCMP_SYS(fsmount), SCMP_SYS(fspick), SCMP_SYS(mount_setattr),
    SCMP_SYS(chroot), SCMP_SYS(open_by_handle_at), SCMP_SYS(name_to_handle_at),
    // namespaces
    SCMP_SYS(setns),
    // large interfaces
    SCMP_SYS(bpf), SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    // keyrings
    SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key),
    // administration of the machine
    SCMP_SYS(kexec_load), SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(init_module), SCMP_SYS(finit_module),
    SCMP_SYS(delete_module), SCMP_SYS(swapon), SCMP_SYS(swapoff), SCMP_SYS(acct), SCMP_SYS(quotactl),
    SCMP_SYS(quotactl_fd), SCMP_SYS(syslog), SCMP_SYS(vhangup), SCMP_SYS(nfsservctl), SCMP_SYS(ioperm), SCMP_SYS(iopl),
    SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime), SCMP_SYS(adjtimex), SCMP_SYS(sethostname),
    SCMP_SYS(setdomainname)};

void add_rules(FilterBuilder& filter) {
  filter.set(SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_ERRNO(ENOSYS));
  // A binary tree over the call numbers instead of a list: the filter runs on every system call of the program.
  filter.set(SCMP_FLTATR_CTL_OPTIMIZE, 2);
  for (const int call : kRefused) filter.refuse(call);
  filter.refuse(SCMP_SYS(clone3), ENOSYS);
  for (const uint64_t flag :
       {uint64_t{CLONE_NEWNS}, uint64_t{CLONE_NEWUTS}, uint64_t{CLONE_NEWIPC}, uint64_t{CLONE_NEWUSER},
        uint64_t{CLONE_NEWPID}, uint64_t{CLONE_NEWNET}, uint64_t{CLONE_NEWCGROUP}}) {
    filter.refuse_flag(SCMP_SYS(clone), 0, flag);
    filter.refuse_flag(SCMP_SYS(unshare), 0, flag);
  }
  // Such a child is the zygote's, which knows nothing of it: its pid would keep the program's namespace from ending.
  filter.refuse_flag(SCMP_SYS(clone), 0, CLONE_PARENT);
  // In clone's flags this bit belongs to the exit signal; only unshare and clone3 know it.
  filter.refuse_flag(SCMP_SYS(unshare), 0, kCloneNewTime);
  filter.refuse_ioctl(TIOCSTI);
  filter.refuse_ioctl(kTiocLinux);
}

}  // namespace

Result<std::shared_ptr<const SealedMemory>> make_program_filter() {
  FilterBuilder filter;
  if (!filter.started()) return fail(ErrorKind::kEngine, "libseccomp could not start a filter");
  add_rules(filter);
  UniqueFd fd(::memfd_create("seccomp-filter", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail_errno("memfd_create");
  filter.export_to(fd.get());
  if (filter.first_failure() != 0) {
    errno = filter.first_failure();
    return fail_errno("build", "the seccomp filter", ErrorKind::kEngine);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    return fail_errno("seal", "the seccomp filter");
  }
  return SealedMemory::adopt(std::move(fd), kFilterBytesMax);
}

}  // namespace kcoral::executor
