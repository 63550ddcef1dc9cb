// A loss of power for a process that knows nothing of it: a library for LD_PRELOAD that writes down what would be lost.
//
// `kill -9` leaves what was written and never synced: the kernel still has it. So this library stands before the C
// library's calls that change files, and keeps a journal of how to undo each of them. After the kill `power_loss.py`
// undoes what no sync made durable, or a part of it.
//
// The journal is a file that the process maps: what stands in it survives the process, and a record counts from the
// moment at which the number of its bytes does. It is written before the call that it undoes, and one lock is held over
// both, so its order is that of the calls, and only the last of them may not have been made. A sync is
// written down once it has succeeded, with how far the journal had come when it began: what was written meanwhile is
// not synced. Files that lose their last name get one in `graves`, so that they can come back and their inode's number
// names no other file.
//
//   KCORAL_POWER_LOSS_ROOT   the watched directory, absolute and without symbolic links; it need not exist yet
//   KCORAL_POWER_LOSS_STATE  has `journal` and `graves`; beside the root and on its file system
//   KCORAL_POWER_LOSS_LIES   optional: syncs of paths with this text in them do nothing, and succeed
//
// Not watched are SQLite's -shm, the control socket, and a checkpoint of the content (`.tmp` until it is whole).
// Nothing durable is in them: a start makes the former two anew and removes the latter. They stay as the process left
// them. A checkpoint's tables are links to watched files: making and removing such a link changes no file, a sync
// through one counts for its file, and a file that loses its last watched name gets its grave whatever links there are.
//
// Children inherit nothing of it: the environment is cleared of it, and a fork is not watched. What it cannot write
// down ends the process with a message: a shared writable mapping of a watched file, a rename of a watched directory or
// from one into another, opening a file to change it by a name that is not watched while it has others, giving a
// watched name to a file that had none. What does not come through these calls is found by power_loss.py, which
// compares all files with the journal.
//
// Thread-safe.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace kcoral::power_loss {
namespace {

// --- the journal; power_loss.py reads it ---

enum class Kind : uint32_t { kWrite = 1, kResize = 2, kEntries = 3, kFileSync = 4, kDirectorySync = 5 };

constexpr uint64_t kNoEntry = 0;
constexpr uint64_t kDirectory = ~uint64_t{0};  // directories are known by their paths

struct Head {
  uint64_t bytes = 0;  // of the record, which the numbers and the names and then the saved bytes follow
  Kind kind;
  uint32_t name_bytes = 0;     // both names, with a 0 after each
  uint64_t inode = 0;          // of the file; of the first name's entry before
  uint64_t second_inode = 0;   // of the second name's entry before
  uint64_t offset = 0;         // of a write; the new length of a resize; how far the journal had come at a sync
  uint64_t count = 0;          // of a write
  uint64_t length_before = 0;  // of the file
  uint64_t saved_bytes = 0;    // from `offset` on, as they were before
};

struct JournalHead {
  std::atomic<uint64_t> used_bytes;
  uint64_t capacity_bytes;
};

constexpr uint64_t kAlignment = 8;

/// Below the root, with all that is in them; as in power_loss.py.
constexpr std::string_view kVolatile[] = {"/control.sock", "/content/checkpoint", "/content/checkpoint.tmp"};

std::atomic<bool> is_watching{false};
std::mutex mutex;
JournalHead* journal = nullptr;
dev_t device = 0;

/// Never destroyed: other threads may outlive them.
std::string& root() {
  static auto* const path = new std::string;
  return *path;
}
std::string& state() {
  static auto* const path = new std::string;
  return *path;
}
std::string& lies() {
  static auto* const text = new std::string;
  return *text;
}

[[noreturn]] void refuse(std::string_view what, std::string_view path) {
  const std::string line = "power loss: " + std::string(what) + ": " + std::string(path) + "\n";
  [[maybe_unused]] const long written = ::syscall(SYS_write, STDERR_FILENO, line.data(), line.size());
  std::abort();
}

/// Answers where the record begins, which takes it back if its call fails. Requires: the lock.
uint64_t append(Head head, std::string_view first, std::string_view second, int saved_from) {
  const uint64_t at = journal->used_bytes.load();
  head.name_bytes = static_cast<uint32_t>(first.size() + second.size() + 2);
  const uint64_t bytes = sizeof head + head.name_bytes + head.saved_bytes;
  head.bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (at + head.bytes > journal->capacity_bytes) refuse("the journal is full", state());
  char* to = reinterpret_cast<char*>(journal) + at;
  std::memcpy(to, &head, sizeof head);
  to += sizeof head;
  std::memcpy(to, first.data(), first.size());
  to[first.size()] = '\0';
  std::memcpy(to + first.size() + 1, second.data(), second.size());
  to[head.name_bytes - 1] = '\0';
  to += head.name_bytes;
  for (uint64_t done = 0; done < head.saved_bytes;) {
    const long got = ::syscall(SYS_pread64, saved_from, to + done, head.saved_bytes - done, head.offset + done);
    if (got <= 0) refuse("cannot read what is overwritten", first);
    done += static_cast<uint64_t>(got);
  }
  journal->used_bytes.store(at + head.bytes);
  return at;
}

// --- what is watched ---

/// Absolute, and with single slashes.
std::string absolute(int directory, const char* path) {
  std::string text;
  if (*path != '/') {
    char base[PATH_MAX];
    const std::string link = directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/" + std::to_string(directory);
    const long size = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), base, sizeof base);
    if (size > 0) text.assign(base, static_cast<size_t>(size));
  }
  std::string_view rest(path);
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (part.empty() || part == ".") continue;
    text += '/';
    text += part;
  }
  return text;
}

bool is_under_root(std::string_view path) {
  if (!path.starts_with(root())) return false;
  if (path.size() > root().size() && path[root().size()] != '/') return false;
  if (path.find("/../") != std::string_view::npos || path.ends_with("/..")) refuse("a path goes back", path);
  return true;
}

/// What the next start makes anew, or removes. Requires: it is under the root.
bool is_volatile(std::string_view path) {
  if (path.ends_with("-shm")) return true;
  path.remove_prefix(root().size());
  return std::ranges::any_of(kVolatile, [&](std::string_view name) {
    return path.starts_with(name) && (path.size() == name.size() || path[name.size()] == '/');
  });
}

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

std::string path_of(int fd) {
  constexpr std::string_view kGone = " (deleted)";
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const long size = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), path, sizeof path);
  std::string text(path, static_cast<size_t>(std::max(size, 0L)));
  if (text.ends_with(kGone)) text.resize(text.size() - kGone.size());
  return text;
}

struct stat status_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) status.st_mode = 0;
  return status;
}

/// Before changes through a name that is not watched: the file may have one that is.
void expect_no_other_name(int directory, const char* path) {
  struct stat status {};
  if (!is_watching || ::fstatat(directory, path, &status, 0) != 0) return;
  if (!S_ISREG(status.st_mode) || status.st_dev != device || status.st_nlink < 2) return;
  refuse("changing a file by a name that is not watched and not its only one is not understood", path);
}

/// Its path, if it is a file that would lose something.
std::optional<std::string> watched_file(int fd) {
  if (!is_watching) return std::nullopt;
  const int before = errno;
  const struct stat status = status_of(fd);
  errno = before;
  if (!S_ISREG(status.st_mode) || status.st_dev != device) return std::nullopt;
  std::string path = path_of(fd);
  if (!is_under_root(path) || is_volatile(path)) return std::nullopt;
  return path;
}

std::optional<std::string> watched_path(int directory, const char* path) {
  if (!is_watching) return std::nullopt;
  std::string text = absolute(directory, path);
  if (!is_under_root(text) || is_volatile(text)) return std::nullopt;
  return text;
}

uint64_t entry_at(const std::string& path, struct stat* status = nullptr) {
  struct stat own {};
  if (status == nullptr) status = &own;
  if (::lstat(path.c_str(), status) != 0) return kNoEntry;
  return S_ISDIR(status->st_mode) ? kDirectory : status->st_ino;
}

void bury(const std::string& path, uint64_t inode) {
  if (inode == kNoEntry || inode == kDirectory) return;
  const std::string grave = state() + "/graves/" + std::to_string(inode);
  const long linked = ::syscall(SYS_linkat, AT_FDCWD, path.c_str(), AT_FDCWD, grave.c_str(), 0);
  if (linked != 0 && errno != EEXIST) refuse("cannot keep what is removed", path);
}

// --- calls, with a record before each ---

/// `call` fails with -1, and changed nothing then. Requires: the lock.
template <typename Call>
long recorded(const Head& head, std::string_view first, std::string_view second, int saved_from, Call call) {
  const uint64_t at = append(head, first, second, saved_from);
  const long result = call();
  if (result < 0) journal->used_bytes.store(at);
  return result;
}

template <typename Call>
long write_to(int fd, std::optional<off_t> offset, uint64_t count, Call call) {
  const auto path = watched_file(fd);
  if (!path) return call();
  const std::lock_guard lock(mutex);
  const struct stat status = status_of(fd);
  const auto length = static_cast<uint64_t>(status.st_size);
  if (!offset) {
    const bool appends = (::fcntl(fd, F_GETFL) & O_APPEND) != 0;
    offset = appends ? status.st_size : static_cast<off_t>(::syscall(SYS_lseek, fd, 0, SEEK_CUR));
  }
  const auto from = static_cast<uint64_t>(*offset);
  Head head{.kind = Kind::kWrite, .inode = status.st_ino, .offset = from, .count = count, .length_before = length};
  if (from < length) head.saved_bytes = std::min(count, length - from);
  return recorded(head, *path, "", fd, call);
}

uint64_t bytes_in(const iovec* parts, int count) {
  uint64_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return bytes;
}

template <typename Call>
long resize(int fd, const std::string& path, uint64_t length, Call call) {
  const struct stat status = status_of(fd);
  const auto before = static_cast<uint64_t>(status.st_size);
  Head head{.kind = Kind::kResize, .inode = status.st_ino, .offset = length, .length_before = before};
  if (length < before) head.saved_bytes = before - length;
  return recorded(head, path, "", fd, call);
}

template <typename Call>
long change_entry(const std::string& path, Call call) {
  const std::lock_guard lock(mutex);
  const uint64_t before = entry_at(path);
  bury(path, before);
  return recorded({.kind = Kind::kEntries, .inode = before}, path, "", -1, call);
}

long open_at(int directory, const char* path, int flags, mode_t mode) {
  const auto call = [&] { return ::syscall(SYS_openat, directory, path, flags, mode); };
  const auto watched = watched_path(directory, path);
  const int access = flags & O_ACCMODE;
  if (!watched && (access != O_RDONLY || (flags & O_TRUNC) != 0)) expect_no_other_name(directory, path);
  if (!watched || (access == O_RDONLY && (flags & O_CREAT) == 0)) return call();
  if (access == O_WRONLY) flags = (flags & ~O_ACCMODE) | O_RDWR;  // what is overwritten can be read
  const std::lock_guard lock(mutex);
  if (entry_at(*watched) == kNoEntry) {
    if ((flags & O_CREAT) == 0) return call();
    return recorded({.kind = Kind::kEntries}, *watched, "", -1, call);
  }
  if ((flags & O_TRUNC) == 0) return call();
  const auto old = static_cast<int>(::syscall(SYS_openat, directory, path, O_RDONLY | O_CLOEXEC, 0));
  if (old < 0) return call();
  const long result = resize(old, *watched, 0, call);
  const int number = errno;
  // It is of no file that SQLite has locked, whose locks this would release: SQLite truncates through a descriptor.
  ::syscall(SYS_close, old);
  errno = number;
  return result;
}

long rename_at(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) {
  const auto call = [&] { return ::syscall(SYS_renameat2, from_directory, from, to_directory, to, flags); };
  const auto old_path = watched_path(from_directory, from);
  const auto new_path = watched_path(to_directory, to);
  if (!old_path && !new_path) return call();
  if (!old_path || !new_path || parent_of(*old_path) != parent_of(*new_path) || flags != 0) {
    refuse("no such rename is understood", from);
  }
  const std::lock_guard lock(mutex);
  const uint64_t moved = entry_at(*old_path);
  const uint64_t replaced = entry_at(*new_path);
  if (moved == kDirectory || replaced == kDirectory) refuse("renaming directories is not understood", from);
  bury(*new_path, replaced);
  const Head head{.kind = Kind::kEntries, .inode = moved, .second_inode = replaced};
  return recorded(head, *old_path, *new_path, -1, call);
}

long link_at(int from_directory, const char* from, int to_directory, const char* to, int flags) {
  const auto call = [&] { return ::syscall(SYS_linkat, from_directory, from, to_directory, to, flags); };
  const auto path = watched_path(to_directory, to);
  if (!path) return call();
  if (!watched_path(from_directory, from)) refuse("linking a file that is not watched is not understood", from);
  return change_entry(*path, call);
}

long unlink_at(int directory, const char* name, int flags) {
  const auto call = [&] { return ::syscall(SYS_unlinkat, directory, name, flags); };
  const auto path = watched_path(directory, name);
  return path ? change_entry(*path, call) : call();
}

long mkdir_at(int directory, const char* name, mode_t mode) {
  const auto call = [&] { return ::syscall(SYS_mkdirat, directory, name, mode); };
  const auto path = watched_path(directory, name);
  return path ? change_entry(*path, call) : call();
}

int sync(int fd, long number) {
  const auto call = [&] { return static_cast<int>(::syscall(number, fd)); };
  if (!is_watching) return call();
  const struct stat status = status_of(fd);
  if (status.st_dev != device) return call();
  const std::string path = path_of(fd);
  const bool is_directory = S_ISDIR(status.st_mode);
  // The directory around the root has the root's own entry.
  if (!is_under_root(path) && !(is_directory && path == parent_of(root()))) return call();
  if (!lies().empty() && path.find(lies()) != std::string::npos) return 0;
  Head head{.kind = is_directory ? Kind::kDirectorySync : Kind::kFileSync, .inode = status.st_ino};
  {
    const std::lock_guard lock(mutex);
    head.offset = journal->used_bytes.load();
  }
  const int result = call();
  if (result != 0) return result;
  const std::lock_guard lock(mutex);
  append(head, path, "", -1);
  return 0;
}

void check_mapping(int fd, int protection, int flags) {
  if (fd < 0 || (protection & PROT_WRITE) == 0 || (flags & (MAP_SHARED | MAP_SHARED_VALIDATE)) == 0) return;
  if (const auto path = watched_file(fd)) refuse("writing into a mapping is not understood", *path);
}

std::string environment(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

__attribute__((constructor)) void begin() {
  root() = environment("KCORAL_POWER_LOSS_ROOT");
  state() = environment("KCORAL_POWER_LOSS_STATE");
  lies() = environment("KCORAL_POWER_LOSS_LIES");
  for (const char* name :
       {"LD_PRELOAD", "KCORAL_POWER_LOSS_ROOT", "KCORAL_POWER_LOSS_STATE", "KCORAL_POWER_LOSS_LIES"}) {
    ::unsetenv(name);
  }
  if (root().empty() || state().empty()) return;
  const std::string path = state() + "/journal";
  const int fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDWR | O_CLOEXEC, 0));
  const struct stat status = status_of(fd);
  const long mapped = ::syscall(SYS_mmap, nullptr, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || status.st_size == 0 || mapped == -1) refuse("there is no journal", path);
  ::syscall(SYS_close, fd);
  journal = reinterpret_cast<JournalHead*>(mapped);
  device = status.st_dev;
  ::pthread_atfork(nullptr, nullptr, [] { is_watching = false; });
  is_watching = true;
}

int plain(long result) { return static_cast<int>(result); }

mode_t mode_of(int flags, va_list more) {
  const bool has_mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
  return has_mode ? va_arg(more, mode_t) : 0;
}

int truncate_path(const char* path, off_t length) {
  if (watched_path(AT_FDCWD, path)) refuse("truncating by name is not understood", path);
  expect_no_other_name(AT_FDCWD, path);
  return plain(::syscall(SYS_truncate, path, length));
}

int truncate_file(int fd, off_t length) {
  const auto call = [&] { return ::syscall(SYS_ftruncate, fd, length); };
  const auto path = watched_file(fd);
  if (!path || length < 0) return plain(call());
  const std::lock_guard lock(mutex);
  return plain(resize(fd, *path, static_cast<uint64_t>(length), call));
}

int allocate(int fd, int mode, off_t offset, off_t length) {
  const auto call = [&] { return ::syscall(SYS_fallocate, fd, mode, offset, length); };
  const auto path = watched_file(fd);
  if (!path) return plain(call());
  const std::lock_guard lock(mutex);
  const off_t end = status_of(fd).st_size;
  // Space beyond the end, kept or given back.
  if ((mode & FALLOC_FL_KEEP_SIZE) != 0 && (mode == FALLOC_FL_KEEP_SIZE || offset >= end)) return plain(call());
  if (mode != 0) refuse("no such allocation is understood", *path);
  return plain(resize(fd, *path, static_cast<uint64_t>(std::max(end, offset + length)), call));
}

std::FILE* open_stream(const char* name, const char* path, const char* mode) {
  if (watched_path(AT_FDCWD, path) && *mode != 'r') refuse("writing through a stream is not understood", path);
  using Open = std::FILE* (*)(const char*, const char*);
  return reinterpret_cast<Open>(::dlsym(RTLD_NEXT, name))(path, mode);
}

void* map(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  check_mapping(fd, protection, flags);
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}

}  // namespace
}  // namespace kcoral::power_loss

// The C library's names. This file sees no 64-bit offsets as names of their own, so they can be defined beside the
// others.
namespace mine = kcoral::power_loss;

extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  return mine::write_to(fd, std::nullopt, count, [&] { return ::syscall(SYS_write, fd, bytes, count); });
}
ssize_t writev(int fd, const iovec* parts, int count) {
  return mine::write_to(fd, std::nullopt, mine::bytes_in(parts, count),
                        [&] { return ::syscall(SYS_writev, fd, parts, count); });
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  return mine::write_to(fd, offset, count, [&] { return ::syscall(SYS_pwrite64, fd, bytes, count, offset); });
}
ssize_t pwrite64(int fd, const void* bytes, size_t count, off_t offset) { return ::pwrite(fd, bytes, count, offset); }
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return mine::write_to(fd, offset, mine::bytes_in(parts, count),
                        [&] { return ::syscall(SYS_pwritev, fd, parts, count, offset, 0); });
}
ssize_t pwritev64(int fd, const iovec* parts, int count, off_t offset) { return ::pwritev(fd, parts, count, offset); }

int ftruncate(int fd, off_t length) noexcept { return mine::truncate_file(fd, length); }
int ftruncate64(int fd, off_t length) noexcept { return mine::truncate_file(fd, length); }
int truncate(const char* path, off_t length) noexcept { return mine::truncate_path(path, length); }
int truncate64(const char* path, off_t length) noexcept { return mine::truncate_path(path, length); }
int fallocate(int fd, int mode, off_t offset, off_t length) { return mine::allocate(fd, mode, offset, length); }
int fallocate64(int fd, int mode, off_t offset, off_t length) { return mine::allocate(fd, mode, offset, length); }
int posix_fallocate(int fd, off_t offset, off_t length) {
  return mine::allocate(fd, 0, offset, length) == 0 ? 0 : errno;
}
int posix_fallocate64(int fd, off_t offset, off_t length) { return ::posix_fallocate(fd, offset, length); }

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mine::mode_of(flags, more);
  va_end(more);
  return mine::plain(mine::open_at(AT_FDCWD, path, flags, mode));
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mine::mode_of(flags, more);
  va_end(more);
  return mine::plain(mine::open_at(AT_FDCWD, path, flags, mode));
}
int openat(int directory, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mine::mode_of(flags, more);
  va_end(more);
  return mine::plain(mine::open_at(directory, path, flags, mode));
}
int openat64(int directory, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mine::mode_of(flags, more);
  va_end(more);
  return mine::plain(mine::open_at(directory, path, flags, mode));
}
int creat(const char* path, mode_t mode) {
  return mine::plain(mine::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode));
}
std::FILE* fopen(const char* path, const char* mode) { return mine::open_stream("fopen", path, mode); }
std::FILE* fopen64(const char* path, const char* mode) { return mine::open_stream("fopen64", path, mode); }

int rename(const char* from, const char* to) noexcept {
  return mine::plain(mine::rename_at(AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat(int from_directory, const char* from, int to_directory, const char* to) noexcept {
  return mine::plain(mine::rename_at(from_directory, from, to_directory, to, 0));
}
int renameat2(int from_directory, const char* from, int to_directory, const char* to, unsigned flags) noexcept {
  return mine::plain(mine::rename_at(from_directory, from, to_directory, to, flags));
}
int link(const char* from, const char* to) noexcept {
  return mine::plain(mine::link_at(AT_FDCWD, from, AT_FDCWD, to, 0));
}
int linkat(int from_directory, const char* from, int to_directory, const char* to, int flags) noexcept {
  return mine::plain(mine::link_at(from_directory, from, to_directory, to, flags));
}
int unlink(const char* path) noexcept { return mine::plain(mine::unlink_at(AT_FDCWD, path, 0)); }
int unlinkat(int directory, const char* path, int flags) noexcept {
  return mine::plain(mine::unlink_at(directory, path, flags));
}
int rmdir(const char* path) noexcept { return mine::plain(mine::unlink_at(AT_FDCWD, path, AT_REMOVEDIR)); }
int remove(const char* path) noexcept {
  const int result = ::unlink(path);
  return result != 0 && errno == EISDIR ? ::rmdir(path) : result;
}
int mkdir(const char* path, mode_t mode) noexcept { return mine::plain(mine::mkdir_at(AT_FDCWD, path, mode)); }
int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  return mine::plain(mine::mkdir_at(directory, path, mode));
}

int fsync(int fd) { return mine::sync(fd, SYS_fsync); }
int fdatasync(int fd) { return mine::sync(fd, SYS_fdatasync); }

void* mmap(void* address, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
  return mine::map(address, length, protection, flags, fd, offset);
}
void* mmap64(void* address, size_t length, int protection, int flags, int fd, off_t offset) noexcept {
  return mine::map(address, length, protection, flags, fd, offset);
}

}  // extern "C"
