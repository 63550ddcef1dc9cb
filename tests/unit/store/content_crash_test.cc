// Ends a process that keeps large content at each of its system calls that change the disk, and looks at what it left.
//
// The child (this program with --child) says on its standard output what it was promised. It dies before its nth such
// call: as kill -9 does it, or as a loss of power does it, where every file is cut back to what was synced of it. The
// parent opens what is there and compares, with n from 1 until the child comes to its end.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/mutex.h"
#include "store/content.h"
#include "tests/unit/store/store_fixture.h"

namespace kcoral::store {
namespace {

namespace fs = std::filesystem;

// ThreadSanitizer makes a child some ten times as slow, and finds in every seventh what it finds in all.
#ifdef __SANITIZE_THREAD__
constexpr int64_t kStride = 7;
#else
constexpr int64_t kStride = 1;
#endif

enum class Death { kKill, kPowerLoss };

/// Where the child is on its way. All its threads share it.
struct Way {
  std::atomic<int64_t> calls_left{-1};  // before the one at which it dies; never, if negative
  std::atomic<bool> is_dying{false};
  Death death = Death::kKill;
  std::string directory;
  Mutex mutex;
  std::map<ino_t, off_t> synced_bytes KCORAL_GUARDED_BY(mutex);
};

Way& way() {
  static auto* const instance = new Way;  // threads of RocksDB may outlive main
  return *instance;
}

void lose_what_is_not_synced() {
  const MutexLock lock(way().mutex);
  for (const auto& entry : fs::recursive_directory_iterator(way().directory)) {
    struct stat status {};
    if (!entry.is_regular_file() || ::stat(entry.path().c_str(), &status) != 0) continue;
    const auto synced = way().synced_bytes.find(status.st_ino);
    const off_t kept = synced == way().synced_bytes.end() ? 0 : synced->second;
    if (kept < status.st_size && ::truncate(entry.path().c_str(), kept) != 0) std::_Exit(7);
  }
}

void before_call() {
  if (way().is_dying) ::pause();
  if (way().calls_left < 0 || way().calls_left-- > 0) return;
  way().is_dying = true;
  if (way().death == Death::kPowerLoss) lose_what_is_not_synced();
  ::kill(::getpid(), SIGKILL);
}

void note_synced(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
  const MutexLock lock(way().mutex);
  way().synced_bytes[status.st_ino] = status.st_size;
}

}  // namespace
}  // namespace kcoral::store

// RocksDB's calls come here: what the program itself defines goes before the C library's.
extern "C" {

ssize_t write(int fd, const void* bytes, size_t count) {
  kcoral::store::before_call();
  return ::syscall(SYS_write, fd, bytes, count);
}
ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) {
  kcoral::store::before_call();
  return ::syscall(SYS_pwrite64, fd, bytes, count, offset);
}
int fdatasync(int fd) {
  kcoral::store::before_call();
  const auto result = static_cast<int>(::syscall(SYS_fdatasync, fd));
  if (result == 0) kcoral::store::note_synced(fd);
  return result;
}
int fsync(int fd) {
  kcoral::store::before_call();
  const auto result = static_cast<int>(::syscall(SYS_fsync, fd));
  if (result == 0) kcoral::store::note_synced(fd);
  return result;
}
int link(const char* from, const char* to) noexcept {
  kcoral::store::before_call();
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int unlink(const char* path) noexcept {
  kcoral::store::before_call();
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int rename(const char* from, const char* to) noexcept {
  kcoral::store::before_call();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

}  // extern "C"

namespace kcoral::store {
namespace {

// --- the child ---

constexpr size_t kLargeBytes = limits::kTableFileBytesMin + 5;
const Uuid kRequest = *Uuid::parse("7d3f1a52-64d0-4d6e-9b39-0d9c57b1a6a1");

std::string large(char fill) { return std::string(kLargeBytes, fill); }

void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::syscall(SYS_write, STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(3);
}

void keep_blob(Content& content, const std::string& bytes, const std::string& name) {
  if (!content.put_blob(Sha256::of(bytes), bytes) || !content.sync()) std::_Exit(4);
  say("kept " + name);
}

[[noreturn]] void run_child(const std::string& directory, int64_t calls, Death death) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  way().directory = directory;
  way().death = death;
  {
    auto content = Content::open(directory);
    if (!content || !(*content)->sweep()) std::_Exit(2);
    way().calls_left = calls;
    keep_blob(**content, "small", "small");
    keep_blob(**content, large('b'), "large");
    const std::string bytes = large('a');
    const auto pieces = {std::string_view(bytes).substr(0, 100), std::string_view(bytes).substr(100)};
    const auto id = (*content)->put_artifact(kRequest, "header", std::vector<std::string_view>(pieces));
    if (!id || !(*content)->sync()) std::_Exit(5);
    say("kept artifact");
    say("dropping artifact");
    if (!(*content)->drop_artifact(kRequest, *id)) std::_Exit(6);
    say("dropped artifact");
    keep_blob(**content, "last", "last");
  }
  std::_Exit(0);
}

// --- the parent ---

class ContentCrashTest : public testing::TestWithParam<Death> {
 protected:
  /// Whether the child came to its end.
  bool run(int64_t calls) {
    std::array<int, 2> ends;
    KCORAL_CHECK(::pipe2(ends.data(), O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    KCORAL_CHECK(child >= 0);
    if (child == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      const std::string number = std::to_string(calls);
      const char* death = GetParam() == Death::kKill ? "kill" : "power";
      ::execl("/proc/self/exe", "store_content_crash_test", "--child", directory_.c_str(), number.c_str(), death,
              nullptr);
      std::_Exit(8);
    }
    ::close(ends[1]);
    std::FILE* lines = ::fdopen(ends[0], "r");
    char line[64];
    said_.clear();
    while (std::fgets(line, sizeof line, lines) != nullptr) said_.insert(std::string(line, std::strlen(line) - 1));
    std::fclose(lines);
    int status = 0;
    KCORAL_CHECK(::waitpid(child, &status, 0) == child);
    EXPECT_TRUE(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << status;
    return WIFEXITED(status);
  }

  void check() {
    size_t large_contents = 0;
    {
      auto content = Content::open(directory_).value();
      ASSERT_TRUE(content->sweep());
      check_blob(*content, "small", "small");
      check_blob(*content, "last", "last");
      large_contents += check_blob(*content, large('b'), "large") ? 1 : 0;
      large_contents += check_artifact(*content) ? 1 : 0;
    }
    EXPECT_EQ(RawContent(directory_).nameless(), std::vector<ContentId>{});
    EXPECT_TRUE(fs::is_empty(directory_ + "/incoming"));
    EXPECT_EQ(table_files(), large_contents);
  }

  bool check_blob(Content& content, const std::string& bytes, const std::string& name) {
    const Digest digest = Sha256::of(bytes);
    const bool is_held = content.blob_bytes(digest).value().has_value();
    EXPECT_TRUE(is_held || !said_.contains("kept " + name)) << name;
    if (is_held) {
      const auto loaded = content.load_blob(digest);
      EXPECT_TRUE(loaded && (*loaded)->view().value() == bytes) << name;
    }
    return is_held;
  }

  /// It is the third content.
  bool check_artifact(Content& content) {
    constexpr ContentId kArtifact = 3;
    const bool is_held = content.artifact_header(kRequest, kArtifact).value().has_value();
    EXPECT_TRUE(is_held || !said_.contains("kept artifact") || said_.contains("dropping artifact"));
    EXPECT_FALSE(is_held && said_.contains("dropped artifact"));
    if (is_held) {
      size_t read_bytes = 0;
      EXPECT_TRUE(content.read_artifact(kArtifact, kLargeBytes, [&](std::string_view bytes) {
        read_bytes += bytes.size();
        return Status();
      }));
      EXPECT_EQ(read_bytes, kLargeBytes);
    }
    return is_held;
  }

  size_t table_files() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (entry.path().extension() == ".sst" && entry.file_size() >= kLargeBytes) ++count;
    }
    return count;
  }

  TempDir dir_;
  const std::string directory_ = dir_.path() + "/content";
  std::set<std::string> said_;
};

TEST_P(ContentCrashTest, WhatWasPromisedIsThereAndNothingElse) {
  int64_t calls = 0;
  for (bool has_ended = false; !has_ended && !HasFailure(); calls += kStride) {
    SCOPED_TRACE(fmt::format("it died before call {}", calls));
    fs::remove_all(directory_);
    has_ended = run(calls);
    check();
  }
  std::printf("%ld calls\n", static_cast<long>(calls));
  EXPECT_GT(calls, 60) << "what it does to the disk is not seen";
  EXPECT_EQ(said_.size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Deaths, ContentCrashTest, testing::Values(Death::kKill, Death::kPowerLoss),
                         [](const auto& death) { return death.param == Death::kKill ? "Kill" : "PowerLoss"; });

}  // namespace
}  // namespace kcoral::store

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--child") == 0) {
    kcoral::store::run_child(
        argv[2], std::stoll(argv[3]),
        std::strcmp(argv[4], "kill") == 0 ? kcoral::store::Death::kKill : kcoral::store::Death::kPowerLoss);
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
