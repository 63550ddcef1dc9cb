// kcoral-init, the sandbox library, the preflight and the search for Python, each as a process sees it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>

#include "executor/child_process.h"
#include "executor/frame.h"
#include "executor/sandbox/preflight.h"
#include "executor/supervisor/slot.h"
#include "tests/unit/executor/slot_harness.h"

namespace kcoral::executor {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::chrono::seconds kWait{30};
constexpr ProcessSpec::User kNobody{65534, 65534};

std::optional<ProcessSpec::User> unprivileged() {
  if (::geteuid() != 0) return std::nullopt;
  return kNobody;
}

uid_t slot_uid() { return ::geteuid() == 0 ? kNobody.uid : ::getuid(); }
gid_t slot_gid() { return ::geteuid() == 0 ? kNobody.gid : ::getgid(); }

/// kcoral-init where an unprivileged user can execute it.
class InitTest : public testing::Test {
 protected:
  void SetUp() override {
    ::chmod(directory.path().c_str(), 0755);
    init = directory.path() / "kcoral-init";
    std::filesystem::copy_file(built_paths().init, init);
  }
  CapturedRun run(std::vector<std::string> arguments, std::optional<ProcessSpec::User> user = unprivileged()) {
    arguments.insert(arguments.begin(), init);
    auto done = run_captured({arguments, {}, false, user}, kWait);
    EXPECT_TRUE(done.has_value()) << done.error().message;
    return done ? *done : CapturedRun{};
  }
  CapturedRun run_in_zygote(const std::string& script) { return run({"zygote", "--", "/bin/sh", "-c", script}); }

  TemporaryDirectory directory;
  std::string init;
};

TEST_F(InitTest, ZygoteIsPidOneWithOneCapability) {
  const CapturedRun result =
      run_in_zygote("echo $$; id -u; grep -E '^Cap|NoNewPrivs' /proc/self/status; ls /proc | grep -c '^[0-9]'");
  EXPECT_EQ(result.err, "");
  const std::string admin = ":\t0000000000200000\n";
  EXPECT_THAT(result.out, HasSubstr("1\n" + std::to_string(slot_uid()) + "\nCapInh" + admin + "CapPrm" + admin +
                                    "CapEff" + admin + "CapBnd" + admin + "CapAmb" + admin + "NoNewPrivs:\t1\n"));
}

TEST_F(InitTest, ExitStatusIsPassedOn) {
  EXPECT_EQ(run_in_zygote("exit 7").status, (ExitStatus{false, 7}));
  EXPECT_EQ(run_in_zygote("exit 0").status, (ExitStatus{false, 0}));
  EXPECT_EQ(run({"zygote", "--", "/nonexistent"}).status, (ExitStatus{false, 127}));
  EXPECT_THAT(run({"zygote", "--", "/nonexistent"}).err, HasSubstr("cannot execute /nonexistent"));
  EXPECT_EQ(run({"what"}).status, (ExitStatus{false, 64}));
  EXPECT_EQ(run({"zygote", "--"}).status, (ExitStatus{false, 64}));
}

TEST_F(InitTest, RefusesRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const CapturedRun result = run({"zygote", "--", "/bin/true"}, std::nullopt);
  EXPECT_EQ(result.status, (ExitStatus{false, 78}));
  EXPECT_THAT(result.err, HasSubstr("never runs as uid 0"));
}

TEST_F(InitTest, MountsInsideStayInside) {
  const CapturedRun result = run_in_zygote("mount -t tmpfs none /tmp && touch /tmp/kcoral-inside && exit 5");
  EXPECT_EQ(result.status, (ExitStatus{false, 5})) << result.err;
  EXPECT_FALSE(std::filesystem::exists("/tmp/kcoral-inside"));
}

TEST_F(InitTest, SaysWhatTheKernelRefused) {
  // No user namespaces below this one: what a host that forbids them answers.
  const CapturedRun result = run_in_zygote(init + " zygote -- /bin/true");
  EXPECT_EQ(result.status, (ExitStatus{false, 78}));
  EXPECT_THAT(result.err, HasSubstr("cannot make user, mount, pid, ipc and net namespaces"));
  EXPECT_THAT(result.err, HasSubstr("user.max_user_namespaces"));
}

TEST_F(InitTest, BothProcessesDieTogether) {
  for (const bool kill_inner : {false, true}) {
    auto outer =
        ChildProcess::start({{init, "zygote", "--", "/bin/sh", "-c", "sleep 1000 & wait"}, {}, false, unprivileged()});
    ASSERT_TRUE(outer.has_value());
    std::vector<pid_t> inner;
    const SteadyTime end = Clock::system().now() + kTestWait;
    while ((inner = descendants(outer->pid())).size() < 2 && Clock::system().now() < end) std::this_thread::yield();
    ASSERT_EQ(inner.size(), 2U);
    ::kill(kill_inner ? inner[0] : outer->pid(), SIGKILL);
    const auto status = outer->wait_for(kWait);
    ASSERT_TRUE(status.has_value());
    EXPECT_EQ(*status, kill_inner ? (ExitStatus{false, 128 + SIGKILL}) : (ExitStatus{true, SIGKILL}));
    EXPECT_TRUE(wait_until_gone(inner));
  }
}

TEST_F(InitTest, BothProcessesEndWithTheSocketToTheExecutor) {
  auto sockets = make_frame_sockets();
  ASSERT_TRUE(sockets.has_value());
  auto outer = ChildProcess::start({{init, "zygote", "--", "/bin/sh", "-c", "sleep 1000 & wait"},
                                    {{3, sockets->theirs.get()}},
                                    false,
                                    unprivileged()});
  ASSERT_TRUE(outer.has_value());
  sockets->theirs.reset();
  std::vector<pid_t> inner;
  const SteadyTime end = Clock::system().now() + kTestWait;
  while ((inner = descendants(outer->pid())).size() < 2 && Clock::system().now() < end) std::this_thread::yield();
  ASSERT_EQ(inner.size(), 2U);
  EXPECT_FALSE(outer->wait_for(std::chrono::milliseconds(50)).has_value());
  sockets->ours.reset();
  EXPECT_EQ(outer->wait_for(kWait), (ExitStatus{false, 0}));
  EXPECT_TRUE(wait_until_gone(inner));
}

/// Killed between the fork of its child and its first word to it, bubblewrap leaves that child behind for ever.
TEST(SlotThatIsBeingSetUp, LetsBubblewrapComeSoFarThatItEndsInOrder) {
  TemporaryDirectory directory;
  const std::string bubblewrap = directory.path() / "bwrap";
  const std::filesystem::path said = directory.path() / "said";
  std::ofstream(bubblewrap) << "#!/bin/sh\nsleep 0.3\ntouch " << said.string() << "\n";
  ::chmod(bubblewrap.c_str(), 0755);
  SlotConfig config;
  config.sandbox.uid = slot_uid();
  config.sandbox.gid = slot_gid();
  config.sandbox.python = "/usr/bin/python3";
  config.sandbox.bubblewrap = std::make_shared<const Bubblewrap>(
      Bubblewrap{bubblewrap, UniqueFd(::open(bubblewrap.c_str(), O_RDONLY | O_CLOEXEC))});
  auto loop = EventLoop::create();
  ASSERT_TRUE(loop.has_value());
  auto slot = Slot::start(**loop, config, {});
  ASSERT_TRUE(slot.has_value()) << slot.error().message;
  slot->reset();
  EXPECT_TRUE(std::filesystem::exists(said));
}

TEST(SandboxLibrary, NeedsNothingButLibc) {
  auto run = run_captured({{"/usr/bin/readelf", "-d", built_paths().sandbox_library}, {}, false, std::nullopt}, kWait);
  if (!run || run->status != ExitStatus{}) GTEST_SKIP() << "needs readelf";
  std::vector<std::string> needed;
  std::istringstream lines(run->out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("(NEEDED)") != std::string::npos) needed.push_back(line.substr(line.find('[')));
  }
  EXPECT_EQ(needed, std::vector<std::string>{"[libc.so.6]"});
}

TEST(Preflight, WorksHereAndSaysWhatIsMissing) {
  const auto checked = check_sandbox(built_paths(), slot_uid(), slot_gid());
  EXPECT_TRUE(checked.has_value()) << checked.error().message;
  const auto as_root = check_sandbox(built_paths(), 0, 0);
  ASSERT_FALSE(as_root.has_value());
  EXPECT_THAT(as_root.error().message, HasSubstr("uid 0"));

  TemporaryDirectory prefix;
  install_with_python(prefix.path(), {});
  std::ofstream(prefix.path() / "lib/kcoral/kcoral-init")
      << "#!/bin/sh\necho kcoral-init: no namespaces >&2\nexit 78\n";
  const auto refused =
      check_sandbox(*find_install_paths(prefix.path() / "bin/kcoral-executor"), slot_uid(), slot_gid());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().kind, ErrorKind::kEnvironment);
  EXPECT_THAT(refused.error().message, HasSubstr("kcoral-init: no namespaces (exit code 78)"));
}

TEST(Preflight, SaysWhatToDoWhereUserNamespacesAreRestricted) {
  TemporaryDirectory prefix;
  ::chmod(prefix.path().c_str(), 0755);
  const std::string executor = install_with_python(prefix.path(), {});
  const std::string carried = prefix.path() / "lib/kcoral/bwrap";
  const auto refusal_when_it_says = [&](const std::string& said) -> std::string {
    std::ofstream(carried) << "#!/bin/sh\necho '" << said << "' >&2\nexit 1\n";
    ::chmod(carried.c_str(), 0755);
    const auto refused = check_sandbox(*find_install_paths(executor), slot_uid(), slot_gid());
    return refused ? "" : refused.error().message;
  };
  for (const char* said : {"bwrap: No permissions to create a new namespace", "bwrap: setting up uid map: denied",
                           "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"}) {
    EXPECT_THAT(refusal_when_it_says(said), testing::AllOf(HasSubstr(said), HasSubstr("apparmor")));
  }
  EXPECT_THAT(refusal_when_it_says("bwrap: Unknown option --x"),
              testing::AllOf(HasSubstr("--x (exit code 1)"), testing::Not(HasSubstr("apparmor"))));
}

TEST(InstallPaths, NameWhatIsMissing) {
  TemporaryDirectory prefix;
  const std::string executor = install_with_python(prefix.path(), {});
  EXPECT_TRUE(find_install_paths(executor).has_value());
  EXPECT_TRUE(find_install_paths(prefix.path() / "bin/kcoral").has_value());
  EXPECT_EQ(find_install_paths(executor)->bubblewrap, "");
  const std::string carried = prefix.path() / "lib/kcoral/bwrap";
  std::ofstream(carried) << "";
  EXPECT_EQ(find_install_paths(executor)->bubblewrap, carried);
  std::filesystem::remove(prefix.path() / "lib/kcoral/kcoral-init");
  const auto incomplete = find_install_paths(executor);
  ASSERT_FALSE(incomplete.has_value());
  EXPECT_THAT(incomplete.error().message, HasSubstr("lib/kcoral/kcoral-init is missing"));
}

/// A directory with programs that stand for interpreters, and PATH pointing at it.
class PythonFinderTest : public testing::Test {
 protected:
  void SetUp() override {
    ::chmod(directory.path().c_str(), 0755);
    path_before = ::getenv("PATH");
  }
  void TearDown() override { ::setenv("PATH", path_before.c_str(), 1); }

  std::string add(const std::string& name, const std::string& text, mode_t mode = 0755) {
    const auto path = directory.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  Result<PythonChoice> find(std::optional<std::string> path = std::nullopt) {
    return find_python(path, slot_uid(), slot_gid());
  }
  std::string error_of(const std::string& path) {
    auto choice = find(path);
    EXPECT_FALSE(choice.has_value());
    return choice ? "" : choice.error().message;
  }
  static std::string saying(const std::string& version, int minor) {
    return "#!/bin/sh\necho '{\"path\":\"'$0'\",\"major\":3,\"minor\":" + std::to_string(minor) +
           ",\"torch\":true,\"version\":\"" + version +
           "\",\"paths\":[\"/usr/lib/python3\",\"/srv/p\",\"/srv/p\",\"/\"]}'\n";
  }

  TemporaryDirectory directory;
  std::string path_before;
};

TEST_F(PythonFinderTest, TakesTheFirstOnPathThatTheUserCanRun) {
  add("a/python3", saying("3.12.0", 12), 0);
  add("b/python3", saying("3.9.1", 9));
  add("c/python3", saying("3.13.1", 13));
  const std::string root = directory.path();
  ::setenv("PATH", (root + "/none:" + root + "/a:relative:" + root + "/b:" + root + "/c:/usr/bin").c_str(), 1);
  auto choice = find();
  ASSERT_TRUE(choice.has_value()) << choice.error().message;
  EXPECT_EQ(choice->path, root + "/c/python3");
  EXPECT_EQ(choice->version, "3.13.1");
  EXPECT_TRUE(choice->has_torch);
  EXPECT_THAT(choice->why, HasSubstr("first python3 on PATH"));
  EXPECT_EQ(choice->read_only_paths, std::vector<std::string>{"/srv/p"});
}

TEST_F(PythonFinderTest, FallsBackToTheSystems) {
  ::setenv("PATH", directory.path().c_str(), 1);
  auto choice = find();
  ASSERT_TRUE(choice.has_value()) << choice.error().message;
  EXPECT_TRUE(choice->path.starts_with("/usr/bin/python3"));
  EXPECT_THAT(choice->why, HasSubstr("can run no python3 on PATH"));
}

TEST_F(PythonFinderTest, ExplicitChoiceMustWork) {
  EXPECT_EQ(find("/usr/bin/python3")->why, "as configured");
  EXPECT_THAT(error_of("/nonexistent/python3"), HasSubstr("there is no /nonexistent/python3"));
  EXPECT_THAT(error_of(add("unreadable", saying("3.12.0", 12), 0)), HasSubstr("cannot run"));
  EXPECT_THAT(error_of(add("old", saying("3.9.1", 9))), HasSubstr("is Python 3.9.1; at least 3.10"));
  std::filesystem::create_symlink(directory.path() / "unreadable", directory.path() / "link");
  EXPECT_THAT(error_of(directory.path() / "link"),
              AllOf(HasSubstr("cannot run"), HasSubstr("(a link to "), HasSubstr("/unreadable)")));
  EXPECT_THAT(error_of("/usr"), HasSubstr("is a directory"));
  EXPECT_THAT(error_of("/bin/true"), HasSubstr("is no Python interpreter"));
  EXPECT_THAT(error_of("/bin/false"), HasSubstr("no working Python"));
}

TEST_F(PythonFinderTest, VirtualEnvironmentIsKept) {
  const std::string venv = directory.path() / "venv";
  auto made = run_captured({{"/usr/bin/python3", "-m", "venv", "--without-pip", venv}, {}, false, std::nullopt}, kWait);
  if (!made || made->status != ExitStatus{}) GTEST_SKIP() << "needs the venv module";
  auto choice = find(venv + "/bin/python3");
  ASSERT_TRUE(choice.has_value()) << choice.error().message;
  EXPECT_EQ(choice->path, venv + "/bin/python3");
  EXPECT_THAT(choice->read_only_paths, testing::Contains(venv));
}

}  // namespace
}  // namespace kcoral::executor
