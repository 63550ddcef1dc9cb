// Programs on the real zygote and runtime, in the real sandbox: that ordinary ones work, and what hostile ones get.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "executor/sandbox/bubblewrap.h"
#include "executor/sandbox/preflight.h"
#include "tests/unit/executor/slot_harness.h"

namespace kcoral::executor {
namespace {

using Ending = schema::Outcome::Ending;
using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// What an executor has started once it is idle: bubblewrap, its child, kcoral-init's outer process, the zygote, and the
// runtime that stands by with its own kcoral-init.
constexpr size_t kProcessesAtRest = 6;
constexpr size_t kZygote = 3;

/// Whether an executor has kept CAP_SYS_NICE, with which it brings runtimes forward.
bool may_raise_priorities(pid_t executor) {
  std::ifstream status("/proc/" + std::to_string(executor) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("CapEff:")) return (std::stoull(line.substr(7), nullptr, 16) >> 23 & 1) != 0;
  }
  return false;
}

class RealRuntime : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    slot_ = new SlotHarness;
    ASSERT_TRUE(slot_->start_and_wait());
  }
  static void TearDownTestSuite() {
    delete slot_;
    slot_ = nullptr;
  }

  /// What `main` of `source` returns, as plain JSON values (strings, numbers, and arrays of them).
  static json value_of(const std::string& source, SlotHarness& slot = *slot_) {
    const RunReport report = slot.run(program_of(source));
    json members = members_of(report);
    EXPECT_EQ(report.ending, Ending::kCompleted) << source << report.error_message << "\n"
                                                 << members["error"]["traceback"].dump() << members["stderr"];
    return plain(members["results"]["result"]);
  }
  static json plain(const json& value) {
    if (!value.is_object() || !value.contains("value")) return value;
    if (value["type"] != "array") return value["value"];
    json list = json::array();
    for (const json& element : value["value"]) list.push_back(plain(element));
    return list;
  }
  /// The error number of `statement`, 0 when it went through.
  static int errno_of(const std::string& statement) {
    const json number = value_of(
        "import ctypes, os, signal, socket\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(name, *arguments):\n"
        "  if getattr(libc, name)(*arguments) < 0: raise OSError(ctypes.get_errno(), name)\n"
        "def main():\n"
        "  try:\n    " +
        statement +
        "\n"
        "  except OSError as error: return error.errno\n"
        "  return 0\n");
    return number.is_number() ? number.get<int>() : -1;
  }

  static SlotHarness* slot_;
};

SlotHarness* RealRuntime::slot_ = nullptr;

TEST_F(RealRuntime, ProgramReturnsItsValue) {
  const RunReport report = slot_->run(program_of("def main():\n  print('hello')\n  return 6 * 7\n"));
  EXPECT_EQ(report.ending, Ending::kCompleted) << report.error_message;
  auto members = members_of(report);
  EXPECT_EQ(members["results"]["result"].dump(), R"({"type":"integer","value":42})");
  EXPECT_EQ(members["stdout"], "hello\n");
  EXPECT_EQ(report.results_summary, R"([{"key":"result","type":"integer","size":29}])");
}

TEST_F(RealRuntime, WhatAProgramPrintsIsThereBeforeItEnds) {
  const size_t shown = slot_->log().outputs().size(), outcomes = slot_->log().outcome_count();
  const size_t idles = slot_->log().idle_count();
  const Assignment assignment = slot_->make_assignment(
      program_of("def main():\n  print('no newline', end='')\n  import time; time.sleep(100)\n"));
  slot_->begin(assignment);
  ASSERT_TRUE(slot_->log().wait_for_output(shown + 1));
  EXPECT_TRUE(wait_until([&] { return text_in(*slot_->log().outputs().back().second) == "no newline"; }));
  slot_->cancel(assignment.request_id);
  ASSERT_TRUE(slot_->log().wait_for_outcome(outcomes + 1));
  EXPECT_EQ(slot_->log().last_report().ending, Ending::kCancelled);
  EXPECT_TRUE(slot_->log().wait_for_idle(idles + 1));
}

TEST_F(RealRuntime, UploadsAndReturnsWithContent) {
  const std::string content = "some content";
  const std::string sha256 = Sha256::of(content).hex();
  const auto ref = [](const char* id) { return json{{"$ref", id}}; };
  Assignment assignment = slot_->make_assignment(
      json{{"instructions",
            {{{"op", "upload"}, {"kind", "bytes"}, {"id", "b"}, {"blob", sha256}},
             {{"op", "upload"}, {"kind", "file"}, {"id", "p"}, {"blob", sha256}, {"path", "in/a.txt"}},
             {{"op", "return"}, {"key", "bytes"}, {"value", ref("b")}},
             {{"op", "return"}, {"key", "file"}, {"kind", "file"}, {"path", ref("p")}},
             {{"op", "return"}, {"key", "folder"}, {"kind", "folder"}, {"path", "in"}}}}}
          .dump());
  assignment.blobs.emplace_back(Sha256::of(content), *SealedMemory::copy_of(content));
  const RunReport report = slot_->run(assignment);
  ASSERT_EQ(report.ending, Ending::kCompleted) << report.error_message;
  ASSERT_EQ(report.parts.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(part_text(report, i), content);
  auto results = members_of(report)["results"];
  EXPECT_EQ(results["bytes"]["sha256"], sha256);
  EXPECT_EQ(results["folder"]["files"]["a.txt"]["part"], "return:2");
}

TEST_F(RealRuntime, TheLibraryThatTimesIsThereAndSaysThatThereIsNoGpu) {
  const RunReport report =
      slot_->run(program_of("from kcoral.builtins import benchmark\ndef main():\n  return benchmark(print)\n"));
  EXPECT_EQ(report.ending, Ending::kFailed);
  const json error = members_of(report)["error"];
  EXPECT_EQ(error["kind"], "unavailable") << error;
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("there is no GPU"));
}

TEST_F(RealRuntime, FailuresAreTheInstructionsOwn) {
  const std::tuple<const char*, const char*, int> cases[] = {
      {"def main(:\n", "parse", 0},
      {"raise ValueError('x')\n", "parse", 0},
      {"other = 1\n", "parse", 1},
      {"main = 1\n", "runtime", 2},
      {"def main(): raise ValueError('x')\n", "runtime", 2},
      {"def main(): assert False, 'no'\n", "correctness", 2},
      {"import sys\ndef main(): sys.exit(3)\n", "runtime", 2},
      {"def main(): return object()\n", "serialization", 3},
      {"import os\ndef main(): os._exit(3)\n", "runtime", 2},
      {"import os\ndef main(): os.kill(os.getpid(), 11)\n", "runtime", 2},
      {"import ctypes\ndef main(): ctypes.string_at(0)\n", "runtime", 2},
      {"import os\nos.abort()\n", "runtime", 0},
  };
  for (const auto& [source, kind, index] : cases) {
    const RunReport report = slot_->run(program_of(source));
    EXPECT_EQ(report.ending, Ending::kFailed) << source;
    EXPECT_EQ(report.error_kind, kind) << source << report.error_message;
    EXPECT_EQ(members_of(report)["error"]["instruction_index"], index) << source;
  }
}

TEST_F(RealRuntime, BehavesAsAScriptStartedFresh) {
  EXPECT_EQ(value_of("import os, sys, pwd\n"
                     "def main():\n"
                     "  return [os.getcwd(), os.environ['HOME'], pwd.getpwuid(os.getuid()).pw_name, os.umask(0o22),\n"
                     "          sys.stdin.read(), os.listdir('.'), os.uname().nodename]\n"),
            json({"/work", "/run/kcoral/home", "kcoral", 18, "", json::array(), "kcoral"}));
  EXPECT_EQ(
      value_of("import multiprocessing, subprocess, threading\n"
               "def square(x): return x * x\n"
               "def main():\n"
               "  with multiprocessing.get_context('fork').Pool(2) as pool: squares = pool.map(square, [1, 2, 3])\n"
               "  thread = threading.Thread(target=lambda: squares.append(0)); thread.start(); thread.join()\n"
               "  return squares + [subprocess.check_output(['/bin/echo', 'hi'], text=True)]\n"),
      json({1, 4, 9, 0, "hi\n"}));
  EXPECT_EQ(value_of("import socket\n"
                     "def main():\n"
                     "  with socket.create_server(('127.0.0.1', 0)) as server:\n"
                     "    with socket.create_connection(server.getsockname()) as client: client.sendall(b'x')\n"
                     "    return server.accept()[0].recv(1).decode()\n"),
            "x");
}

// --- what a hostile program gets ---

TEST_F(RealRuntime, IsNobodyWithNothing) {
  EXPECT_NE(value_of("import os\ndef main(): return os.getuid()\n"), 0);
  EXPECT_EQ(value_of("def main():\n"
                     "  lines = open('/proc/self/status').read().splitlines()\n"
                     "  return [l.split()[1] for l in lines if l.startswith(('CapInh', 'CapPrm', 'CapEff', 'CapAmb', "
                     "'NoNewPrivs', 'Seccomp:'))]\n"),
            json({"0000000000000000", "0000000000000000", "0000000000000000", "0000000000000000", "1", "2"}));
  EXPECT_EQ(value_of("import os\ndef main(): return sorted(os.listdir('/proc/self/fd'), key=int)[:3]\n"),
            json({"0", "1", "2"}));
}

TEST_F(RealRuntime, HostFilesAreNotThere) {
  EXPECT_EQ(errno_of("open('/etc/shadow').read()"), ENOENT);
  EXPECT_EQ(errno_of("open('/proc/1/root/etc/shadow').read()"), EACCES);
  for (const char* path : {"/root", "/home", "/var", "/sys", "/boot", "/mnt", "/etc/hostname", "/etc/ssh"}) {
    EXPECT_EQ(errno_of(fmt::format("os.stat('{}')", path)), ENOENT) << path;
  }
  EXPECT_EQ(errno_of(fmt::format("os.stat('{}')", slot_->directory().string())), ENOENT);
}

TEST_F(RealRuntime, SysctlsCannotBeWritten) {
  for (const char* path : {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
                           "/proc/sys/user/max_user_namespaces"}) {
    EXPECT_THAT(errno_of(fmt::format("open('{}', 'w').write('x')", path)), testing::AnyOf(EACCES, EPERM, EROFS))
        << path;
  }
}

TEST_F(RealRuntime, NamespacesAndMountsAreRefused) {
  EXPECT_EQ(errno_of("call('unshare', 0x10000000)"), EPERM);
  EXPECT_EQ(errno_of("call('unshare', 0x20000)"), EPERM);
  EXPECT_EQ(errno_of("call('setns', os.open('/proc/self/ns/mnt', os.O_RDONLY), 0)"), EPERM);
  EXPECT_EQ(errno_of("call('mount', b'none', b'/tmp', b'tmpfs', 0, None)"), EPERM);
  EXPECT_EQ(errno_of("call('umount2', b'/tmp', 2)"), EPERM);
  EXPECT_EQ(errno_of("call('sethostname', b'x', 1)"), EPERM);
  EXPECT_NE(value_of("import subprocess\ndef main(): return subprocess.run(['unshare', '-Ur', 'true']).returncode\n"),
            0);
}

TEST_F(RealRuntime, SeesAndSignalsOnlyItsOwnProcesses) {
  EXPECT_EQ(value_of("import os\ndef main(): return [p for p in os.listdir('/proc') if p.isdigit()]\n"),
            json({"1", "2"}));
  // Its own init ignores it; the zygote has no number here.
  EXPECT_EQ(value_of("import os, signal\n"
                     "def main():\n"
                     "  for number in (9, 15, 19, 11): os.kill(1, number)\n"
                     "  return [os.getpid(), os.getppid()]\n"),
            json({2, 0}));
  EXPECT_EQ(errno_of("os.kill(3, 0)"), ESRCH);
  EXPECT_EQ(errno_of("ctypes.set_errno(0); call('ptrace', 16, 1, None, None)"), EPERM);
  EXPECT_EQ(errno_of("open('/proc/1/mem', 'r+b')"), EACCES);
}

TEST_F(RealRuntime, NetworkEndsAtItsOwnLoopback) {
  EXPECT_EQ(errno_of("socket.create_connection(('192.0.2.1', 80), 1)"), ENETUNREACH);
  EXPECT_EQ(value_of("import socket\ndef main(): return [name for _, name in socket.if_nameindex()]\n"), json({"lo"}));
}

TEST_F(RealRuntime, OnlyItsFourDirectoriesCanBeWritten) {
  const json writable = value_of(
      "import os, stat\n"
      "def main():\n"
      "  found = []\n"
      "  for root, directories, files in os.walk('/'):\n"
      "    if root.startswith('/proc'): directories[:] = []; continue\n"
      "    try: os.close(os.open(root + '/.probe', os.O_CREAT | os.O_EXCL | os.O_WRONLY)); os.unlink(root + "
      "'/.probe')\n"
      "    except OSError: pass\n"
      "    else: found.append(root)\n"
      "    for name in files:\n"
      "      path = os.path.join(root, name)\n"
      "      if root.startswith('/dev') or os.path.islink(path): continue\n"
      "      if any(root.startswith(d) for d in ('/work', '/tmp', '/dev/shm', '/run/kcoral')): continue\n"
      "      try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)); found.append(path)\n"
      "      except OSError: pass\n"
      "    if root in ('/run/kcoral',): directories[:] = []\n"
      "  return sorted(found)\n");
  EXPECT_EQ(writable, json({"/dev/shm", "/run/kcoral", "/tmp", "/work"}));
}

TEST_F(RealRuntime, NothingTravelsToTheNextProgram) {
  const char* leave =
      "import builtins, os, sys, signal, socket\n"
      "def main():\n"
      "  for d in ('/tmp', '/dev/shm', '/work', '/run/kcoral', os.environ['HOME']): open(d + '/left', 'w').write('x')\n"
      "  os.environ['LEFT'] = 'x'; os.umask(0); signal.signal(signal.SIGTERM, signal.SIG_IGN); builtins.left = 1\n"
      "  s = socket.socket(socket.AF_UNIX); s.bind('\\0left'); s.listen()\n"
      "  if os.fork() == 0:\n"
      "    os.setsid()\n"
      "    if os.fork() == 0:\n"
      "      while True: signal.pause()\n"
      "    os._exit(0)\n"
      "  return 0\n";
  const char* look =
      "import builtins, os, signal, socket\n"
      "def main():\n"
      "  found = [d for d in ('/tmp', '/dev/shm', '/work', '/run/kcoral', os.environ['HOME']) if os.path.exists(d + "
      "'/left')]\n"
      "  found += ['environment'] * ('LEFT' in os.environ) + ['builtin'] * hasattr(builtins, 'left')\n"
      "  found += ['umask'] * (os.umask(0o22) != 0o22) + ['handler'] * (signal.getsignal(15) != signal.SIG_DFL)\n"
      "  found += ['process'] * (len([p for p in os.listdir('/proc') if p.isdigit()]) != 2)\n"
      "  s = socket.socket(socket.AF_UNIX)\n"
      "  try: s.connect('\\0left'); found.append('socket')\n"
      "  except OSError: pass\n"
      "  return found\n";
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(value_of(leave), 0);
    EXPECT_EQ(value_of(look), json::array());
  }
  EXPECT_EQ(descendants(slot_->executor_pid()).size(), kProcessesAtRest);
}

TEST_F(RealRuntime, ProgramThatBreaksPythonHurtsOnlyItself) {
  const char* sources[] = {
      "import builtins\nbuiltins.len = builtins.open = builtins.isinstance = None\ndef main(): return 1\n",
      "import sys\nsys.modules.clear()\ndef main(): return 1\n",
      "import os\nos.write = os.close = os._exit = None\ndef main(): return 1\n",
      "import os\ndef main():\n  os.closerange(3, 10000)\n  return 1\n",
      "import gc\ndef main():\n  for o in gc.get_objects():\n    if isinstance(o, dict): o.clear()\n",
  };
  for (const char* source : sources) {
    Assignment assignment = slot_->make_assignment(program_of(source));
    const RunReport report = slot_->run(assignment);
    EXPECT_TRUE(report.ending == Ending::kCompleted || report.ending == Ending::kFailed) << source;
  }
  EXPECT_EQ(value_of("def main(): return len([1, 2])\n"), 2);
}

TEST_F(RealRuntime, RuntimesStepBackUntilTheirProgramComes) {
  if (!may_raise_priorities(slot_->executor_pid())) GTEST_SKIP() << "needs root with CAP_SYS_NICE";
  const int own = ::getpriority(PRIO_PROCESS, 0);
  // One after another: each is taken from those that wait, or while it is still on its way there.
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(value_of("import os\ndef main(): return os.getpriority(os.PRIO_PROCESS, 0)\n"), own);
  }
  const pid_t ahead = descendants(slot_->executor_pid()).back();
  const SteadyTime end = Clock::system().now() + kTestWait;
  while (::getpriority(PRIO_PROCESS, static_cast<id_t>(ahead)) != own + 10) {
    ASSERT_LT(Clock::system().now(), end);
    std::this_thread::yield();
  }
}

TEST_F(RealRuntime, AnExecutorKeepsNoCapabilityButThatOfPriorities) {
  std::ifstream status("/proc/" + std::to_string(slot_->executor_pid()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Cap") || line.starts_with("CapBnd")) continue;
    EXPECT_EQ(std::stoull(line.substr(line.find(':') + 1), nullptr, 16) & ~(uint64_t{1} << 23), 0u) << line;
  }
}

TEST_F(RealRuntime, HundredProgramsLeakNothing) {
  const std::string program = program_of("def main(): return b'x' * 1000\n");
  slot_->run(program);
  const pid_t executor = slot_->executor_pid(), zygote = descendants(executor)[kZygote];
  const size_t fds = open_fds(executor), zygote_fds = open_fds(zygote);
  for (int i = 0; i < 100; ++i) slot_->run(program);
  EXPECT_EQ(open_fds(executor), fds);
  EXPECT_EQ(open_fds(zygote), zygote_fds);
  EXPECT_EQ(descendants(executor).size(), kProcessesAtRest);
}

// --- slots with settings of their own ---

TEST(RealRuntimeSettings, DataDirectoryIsHiddenWhereADirectoryAroundItIsShown) {
  // Not under /tmp, which no slot shows.
  std::string name = "/var/tmp/kcoral-test-XXXXXX";
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  ::chmod(name.c_str(), 0755);
  std::filesystem::create_directories(name + "/data");
  std::ofstream(name + "/data/secret") << "secret";
  std::ofstream(name + "/model") << "model";
  {
    SlotHarness slot([&](ExecutorConfig& config) {
      config.read_only_paths.push_back(name);
      config.hidden_paths.push_back(name + "/data");
      config.environment["MODEL"] = name;
    });
    ASSERT_TRUE(slot.start_and_wait());
    const RunReport report =
        slot.run(program_of("import os\n"
                            "def main():\n"
                            "  root = os.environ['MODEL']\n"
                            "  try: seen = os.listdir(root + '/data')\n"
                            "  except OSError: seen = 'nothing'\n"
                            "  return [open(root + '/model').read(), seen, os.path.exists(root + '/data/secret')]\n"));
    ASSERT_EQ(report.ending, Ending::kCompleted) << report.error_message;
    EXPECT_THAT(members_of(report)["results"]["result"].dump(), HasSubstr("model"));
    EXPECT_EQ(members_of(report)["results"]["result"]["value"][1]["value"], "nothing");
    EXPECT_EQ(members_of(report)["results"]["result"]["value"][2]["value"], false);
  }
  std::filesystem::remove_all(name);
}

TEST(RealRuntimeSettings, LimitsAreFelt) {
  SlotHarness slot([](ExecutorConfig& config) {
    config.limits.work_bytes = config.limits.tmp_bytes = config.limits.shm_bytes = 1 << 20;
    config.limits.file_size_bytes = 512 << 10;
    config.limits.open_files = 100;
    config.limits.processes = 30;
    config.limits.cpu_seconds = 1;
  });
  ASSERT_TRUE(slot.start_and_wait());
  const RunReport report = slot.run(program_of(
      "import errno, os, resource\n"
      "def number(function):\n"
      "  try: function()\n"
      "  except OSError as error: return errno.errorcode[error.errno]\n"
      "def fill(directory):\n"
      "  for i in range(20): open('%s/f%d' % (directory, i), 'wb').write(bytes(100000))\n"
      "def fork():\n"
      "  for i in range(100):\n"
      "    if os.fork() == 0:\n"
      "      import signal; signal.pause()\n"
      "def many():\n"
      "  files = [open('/dev/null') for i in range(200)]\n"
      "def main():\n"
      "  return [number(lambda: open('/tmp/big', 'wb').write(bytes(600000))), number(lambda: fill('/work')),\n"
      "          number(lambda: fill('/tmp')), number(lambda: fill('/dev/shm')), number(many), number(fork),\n"
      "          resource.getrlimit(resource.RLIMIT_CORE)[1]]\n"));
  ASSERT_EQ(report.ending, Ending::kCompleted) << report.error_message << members_of(report)["stderr"];
  std::vector<std::string> values;
  const json members = members_of(report);
  for (const json& value : members["results"]["result"]["value"]) values.push_back(value["value"].dump());
  EXPECT_THAT(values, testing::ElementsAre("\"EFBIG\"", "\"ENOSPC\"", "\"ENOSPC\"", "\"ENOSPC\"", "\"EMFILE\"",
                                           "\"EAGAIN\"", "0"));
  const RunReport spinning = slot.run(program_of("def main():\n  while True: pass\n"));
  EXPECT_EQ(spinning.ending, Ending::kFailed);
  EXPECT_THAT(spinning.error_message, HasSubstr("signal 24 (SIGXCPU): it used all of its CPU time"));
}

TEST(RealRuntimeSettings, EnvironmentIsTheAllowListAndNotTheServers) {
  ::setenv("KCORAL_TEST_SECRET", "x", 1);
  SlotHarness slot([](ExecutorConfig& config) { config.environment["MY"] = "own"; });
  ASSERT_TRUE(slot.start_and_wait());
  ::unsetenv("KCORAL_TEST_SECRET");
  const RunReport report = slot.run(program_of("import os\ndef main(): return ' '.join(sorted(os.environ))\n"));
  const std::string names = members_of(report)["results"]["result"]["value"].get<std::string>();
  EXPECT_THAT(names, HasSubstr("HOME KCORAL_DIR LANG"));
  EXPECT_THAT(names, HasSubstr("MY"));
  EXPECT_THAT(names, testing::Not(HasSubstr("SECRET")));
}

TEST(RealRuntimeSettings, AnInstallationNeedsToBeReachableForTheServersUserOnly) {
  namespace fs = std::filesystem;
  TemporaryDirectory prefix;  // mode 0700
  const std::string executor = install_with_python(prefix.path(), {});
  fs::copy(built_paths().python_directory, prefix.path() / "lib/kcoral/python", fs::copy_options::recursive);
  const fs::path carried = prefix.path() / "lib/kcoral/bwrap";
  fs::copy_file((*open_bubblewrap(built_paths()))->path, carried);
  SlotHarness slot([&](ExecutorConfig& config) { config.executor_path = executor; });
  const auto checked = check_sandbox(*find_install_paths(executor), slot.config().uid, slot.config().gid);
  EXPECT_TRUE(checked.has_value()) << checked.error().message;
  ASSERT_TRUE(slot.start_and_wait());
  EXPECT_EQ(fs::read_symlink(fmt::format("/proc/{}/exe", descendants(slot.executor_pid()).at(0))), carried);
  EXPECT_EQ(slot.run(program_of("def main(): return 1\n")).ending, Ending::kCompleted);
}

}  // namespace
}  // namespace kcoral::executor
