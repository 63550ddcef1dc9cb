// What the tests with real processes share: a loop on a thread of its own, a RemoteExecutor on it, and everything that
// it reports, to be waited for with a deadline. Thread-safe where the test's thread meets the loop's.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "executor/child_process.h"
#include "executor/install_paths.h"
#include "executor/python_finder.h"
#include "executor/remote_executor.h"
#include "tests/unit/executor/shifted_clock.h"

namespace kcoral::executor {

inline constexpr std::chrono::seconds kTestWait{60};

inline bool wait_until(const std::function<bool()>& is_true) {
  const SteadyTime end = Clock::system().now() + kTestWait;
  while (!is_true()) {
    if (Clock::system().now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// An empty directory that is removed at the end.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "kcoral-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Our programs as the build made them.
inline InstallPaths built_paths() {
  auto paths = find_install_paths(KCORAL_TEST_PROGRAMS "/kcoral-executor");
  EXPECT_TRUE(paths.has_value()) << paths.error().message;
  return *paths;
}

/// An installation of its own, with `python_sources` (name → text) in place of our Python side.
inline std::string install_with_python(const std::filesystem::path& prefix,
                                       const std::map<std::string, std::string>& python_sources) {
  namespace fs = std::filesystem;
  const InstallPaths built = built_paths();
  fs::create_directories(prefix / "bin");
  fs::create_directories(prefix / "lib/kcoral/python");
  fs::copy_file(built.executor, prefix / "bin/kcoral-executor");
  fs::copy_file(built.init, prefix / "lib/kcoral/kcoral-init");
  fs::copy_file(built.sandbox_library, prefix / "lib/kcoral/libkcoral_sandbox.so");
  fs::copy_file(built.timing_library, prefix / "lib/kcoral/libkcoral_timing.so");
  for (const auto& [name, text] : python_sources) std::ofstream(prefix / "lib/kcoral/python" / name) << text;
  return prefix / "bin/kcoral-executor";
}

class LoopThread {
 public:
  LoopThread() {
    auto loop = EventLoop::create(clock_);
    KCORAL_CHECK(loop.has_value());
    loop_ = std::move(*loop);
    thread_ = std::thread([this] { loop_->run(); });
  }
  ~LoopThread() {
    loop_->stop();
    thread_.join();
  }

  EventLoop& loop() { return *loop_; }
  void advance(std::chrono::milliseconds by) {
    clock_.advance(by);
    loop_->post([] {});  // it may be asleep until a time that has come now
  }
  /// Runs `function` on the loop's thread and waits for its end.
  void call(const std::function<void()>& function) {
    struct {
      Mutex mutex;
      ConditionVariable changed;
      bool is_done KCORAL_GUARDED_BY(mutex) = false;
    } progress;
    loop_->post([&] {
      function();
      const MutexLock lock(progress.mutex);
      progress.is_done = true;
      progress.changed.notify_all();
    });
    const MutexLock lock(progress.mutex);
    while (!progress.is_done) progress.changed.wait(progress.mutex);
  }

 private:
  ShiftedClock clock_;
  std::unique_ptr<EventLoop> loop_;
  std::thread thread_;
};

/// Everything that an executor reported.
class EventLog : public ExecutorEvents {
 public:
  struct Lost {
    std::string reason;
    bool permanent;
  };

  void on_idle(const ExecutorInfo& info) override {
    note([&]() KCORAL_REQUIRES(mutex_) {
      ++idle_count_;
      info_ = info;
    });
  }
  void on_running(int pid) override {
    note([&]() KCORAL_REQUIRES(mutex_) { pids_.push_back(pid); });
  }
  void on_records(std::vector<RunRecord> records) override {
    note([&]() KCORAL_REQUIRES(mutex_) { records_.insert(records_.end(), records.begin(), records.end()); });
  }
  void on_output(OutputStream stream, std::shared_ptr<const UniqueFd> memory) override {
    note([&]() KCORAL_REQUIRES(mutex_) { outputs_.emplace_back(stream, std::move(memory)); });
  }
  void on_lease_asked(const LeaseAsk& ask) override {
    note([&]() KCORAL_REQUIRES(mutex_) { asks_.push_back(ask); });
    on_ask(ask);
  }
  void on_lease_ended(uint64_t id, bool processes_ended) override {
    note([&]() KCORAL_REQUIRES(mutex_) { ended_leases_.emplace_back(id, processes_ended); });
  }
  void on_outcome(RunReport report) override {
    note([&]() KCORAL_REQUIRES(mutex_) { reports_.push_back(std::move(report)); });
  }
  void on_quarantined(std::string reason) override {
    note([&]() KCORAL_REQUIRES(mutex_) { quarantines_.push_back(std::move(reason)); });
  }
  void on_lost(std::string reason, bool permanent) override {
    note([&]() KCORAL_REQUIRES(mutex_) { lost_.push_back({std::move(reason), permanent}); });
  }

  /// What becomes of a lease that is asked for; on the loop's thread.
  std::function<void(const LeaseAsk& ask)> on_ask = [](const LeaseAsk&) {};

  bool wait_for_ask(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return asks_.size() >= count; });
  }
  /// Until `is_true` holds of all that were asked for.
  bool wait_for_asks(const std::function<bool(const std::vector<LeaseAsk>&)>& is_true) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return is_true(asks_); });
  }
  bool wait_for_context_ask() {
    return wait_for_asks([](const std::vector<LeaseAsk>& asks) { return !asks.empty() && !asks.back().for_program(); });
  }
  bool wait_for_ended_lease(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return ended_leases_.size() >= count; });
  }
  std::vector<LeaseAsk> asks() {
    const MutexLock lock(mutex_);
    return asks_;
  }
  /// With whether their processes had ended.
  std::vector<std::pair<uint64_t, bool>> ended_leases() {
    const MutexLock lock(mutex_);
    return ended_leases_;
  }

  bool wait_for_idle(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return idle_count_ >= count; });
  }
  bool wait_for_running(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return pids_.size() >= count; });
  }
  bool wait_for_output(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return outputs_.size() >= count; });
  }
  bool wait_for_outcome(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return reports_.size() >= count; });
  }
  bool wait_for_quarantine(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return quarantines_.size() >= count; });
  }
  bool wait_for_lost(size_t count) {
    return wait([&]() KCORAL_REQUIRES(mutex_) { return lost_.size() >= count; });
  }
  bool wait_for_record(const std::string& text) {
    return wait([&]() KCORAL_REQUIRES(mutex_) {
      for (const RunRecord& record : records_) {
        if (record.members.find(text) != std::string::npos) return true;
      }
      return false;
    });
  }

  size_t idle_count() {
    const MutexLock lock(mutex_);
    return idle_count_;
  }
  size_t outcome_count() {
    const MutexLock lock(mutex_);
    return reports_.size();
  }
  ExecutorInfo info() {
    const MutexLock lock(mutex_);
    return info_;
  }
  int last_pid() {
    const MutexLock lock(mutex_);
    return pids_.back();
  }
  using Output = std::pair<OutputStream, std::shared_ptr<const UniqueFd>>;
  std::vector<Output> outputs() {
    const MutexLock lock(mutex_);
    return outputs_;
  }
  RunReport last_report() {
    const MutexLock lock(mutex_);
    return reports_.back();
  }
  std::string last_quarantine() {
    const MutexLock lock(mutex_);
    return quarantines_.back();
  }
  std::vector<Lost> lost() {
    const MutexLock lock(mutex_);
    return lost_;
  }
  std::vector<RunRecord> records() {
    const MutexLock lock(mutex_);
    return records_;
  }
  std::string records_text() {
    std::string text;
    for (const RunRecord& record : records()) text += "{" + record.members + "}\n";
    return text;
  }

 private:
  void note(const std::function<void()>& change) {
    const MutexLock lock(mutex_);
    change();
    changed_.notify_all();
  }
  bool wait(const std::function<bool()>& is_true) {
    const MutexLock lock(mutex_);
    const SteadyTime deadline = Clock::system().now() + kTestWait;
    while (!is_true()) {
      if (!changed_.wait_until(mutex_, deadline)) return is_true();
    }
    return true;
  }

  Mutex mutex_;
  ConditionVariable changed_;
  size_t idle_count_ KCORAL_GUARDED_BY(mutex_) = 0;
  ExecutorInfo info_ KCORAL_GUARDED_BY(mutex_);
  std::vector<int> pids_ KCORAL_GUARDED_BY(mutex_);
  std::vector<RunRecord> records_ KCORAL_GUARDED_BY(mutex_);
  std::vector<Output> outputs_ KCORAL_GUARDED_BY(mutex_);
  std::vector<RunReport> reports_ KCORAL_GUARDED_BY(mutex_);
  std::vector<LeaseAsk> asks_ KCORAL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint64_t, bool>> ended_leases_ KCORAL_GUARDED_BY(mutex_);
  std::vector<std::string> quarantines_ KCORAL_GUARDED_BY(mutex_);
  std::vector<Lost> lost_ KCORAL_GUARDED_BY(mutex_);
};

/// A slot from its start to its end, driven from the test's thread.
class SlotHarness {
 public:
  using Adjust = std::function<void(ExecutorConfig&)>;
  explicit SlotHarness(const Adjust& adjust = {}) {
    config_.name = "slot-0";
    config_.executor_path = built_paths().executor;
    config_.lock_path = directory_.path() / "slot-0.lock";
    if (::geteuid() != 0) {
      config_.uid = ::getuid();
      config_.gid = ::getgid();
    }
    auto python = find_python("/usr/bin/python3", config_.uid, config_.gid);
    EXPECT_TRUE(python.has_value()) << python.error().message;
    config_.python = python->path;
    config_.read_only_paths = python->read_only_paths;
    if (adjust) adjust(config_);
    // Whoever asks for a device has it.
    log_.on_ask = [this](const LeaseAsk& ask) {
      executor_->grant_lease(ask.id, ask.devices.empty() ? config_.devices : ask.devices);
    };
  }
  ~SlotHarness() { stop(); }

  ExecutorConfig& config() { return config_; }
  EventLog& log() { return log_; }
  /// For the loop's thread.
  RemoteExecutor& executor() { return *executor_; }
  const std::filesystem::path& directory() const { return directory_.path(); }

  /// Starts and waits until it is idle or lost.
  void start() {
    thread_.call([&] {
      executor_ = std::make_unique<RemoteExecutor>(thread_.loop(), config_);
      executor_->start(log_);
    });
  }
  bool start_and_wait() {
    start();
    return log_.wait_for_idle(1);
  }
  void stop() {
    thread_.call([&] { executor_.reset(); });
  }
  pid_t executor_pid() {
    pid_t pid = 0;
    thread_.call([&] { pid = executor_->pid(); });
    return pid;
  }

  Assignment make_assignment(const std::string& program) {
    Assignment assignment;
    assignment.request_id = Uuid::random();
    assignment.timeout = std::chrono::seconds(30);
    assignment.output_limit_bytes = 1 << 20;
    auto text = SealedMemory::copy_of(program);
    KCORAL_CHECK(text.has_value());
    assignment.program = *text;
    return assignment;
  }
  void begin(Assignment assignment) {
    thread_.call([&] { executor_->run(std::move(assignment)); });
  }
  void grant_lease(uint64_t id, const std::vector<int>& devices) {
    thread_.call([&] { executor_->grant_lease(id, devices); });
  }
  void deny_lease(uint64_t id, const std::string& message) {
    thread_.call([&] { executor_->deny_lease(id, message); });
  }
  /// Moves the server's clock, after what has come so far; the executor has its own.
  void advance(std::chrono::milliseconds by) {
    settle();
    thread_.advance(by);
  }
  /// Until the loop has done what was due.
  void settle() {
    for (int round = 0; round < 2; ++round) thread_.call([] {});
  }
  void cancel(const Uuid& request_id) {
    thread_.call([&] { executor_->cancel(request_id); });
  }
  /// Takes nothing that the executor says before it is told.
  void cancel_once(const Uuid& request_id, const std::function<bool()>& is_time) {
    thread_.call([&] {
      EXPECT_TRUE(wait_until(is_time));
      executor_->cancel(request_id);
    });
  }
  void begin_and_cancel(const Assignment& assignment) {
    thread_.call([&] {
      executor_->run(assignment);
      executor_->cancel(assignment.request_id);
    });
  }
  /// Runs one program to its outcome and until the slot is idle again.
  RunReport run(Assignment assignment) {
    const size_t outcomes = log_.outcome_count(), idles = log_.idle_count();
    begin(std::move(assignment));
    EXPECT_TRUE(log_.wait_for_outcome(outcomes + 1)) << "no outcome came";
    if (log_.outcome_count() == outcomes) return {};
    RunReport report = log_.last_report();
    EXPECT_TRUE(log_.wait_for_idle(idles + 1)) << "it did not come idle again";
    return report;
  }
  RunReport run(const std::string& program) { return run(make_assignment(program)); }

 private:
  TemporaryDirectory directory_;
  ExecutorConfig config_;
  EventLog log_;
  LoopThread thread_;
  std::unique_ptr<RemoteExecutor> executor_;
};

/// A program that loads `source`, calls its function `main`, and returns what that returns under "result".
inline std::string program_of(const std::string& source) {
  using nlohmann::json;
  const auto ref = [](const char* id) { return json{{"$ref", id}}; };
  return json{{"instructions",
               {{{"op", "upload"}, {"kind", "module"}, {"id", "m"}, {"source", source}},
                {{"op", "get_function"}, {"id", "f"}, {"module", ref("m")}, {"name", "main"}},
                {{"op", "run"}, {"id", "r"}, {"fn", ref("f")}},
                {{"op", "return"}, {"key", "result"}, {"value", ref("r")}}}}}
      .dump();
}

/// The members of an answer as a document; empty where there is none. Its operator[] is safe on what is absent.
inline nlohmann::json members_of(const RunReport& report) {
  auto members = nlohmann::json::object();
  if (report.outcome_members == nullptr) return members;
  auto text = report.outcome_members->view();
  EXPECT_TRUE(text.has_value());
  members = nlohmann::json::parse("{" + std::string(*text) + "}", nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(members.is_object()) << *text;
  return members;
}

inline std::string part_text(const RunReport& report, size_t index) {
  const schema::Extent& extent = report.parts.at(index).extent;
  auto text = extent.memory->view();
  return text ? std::string(text->substr(extent.offset, extent.length)) : "?";
}

/// All that a run has printed to one stream by now.
inline std::string text_in(const UniqueFd& memory) {
  std::string text(1 << 20, '\0');
  const ssize_t size = ::pread(memory.get(), text.data(), text.size(), 0);
  text.resize(size < 0 ? 0 : static_cast<size_t>(size));
  return text;
}

/// How many descriptors a process has open; 0 when it cannot be seen.
inline size_t open_fds(pid_t pid) {
  size_t count = 0;
  std::error_code error;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    ++count;
  }
  return count;
}

/// The user and group as which a process runs.
inline ProcessSpec::User user_of(pid_t pid) {
  ProcessSpec::User user{};
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    if (word == "Uid:") status >> user.uid;
    if (word == "Gid:") status >> user.gid;
  }
  return user;
}

/// Lets a process open just `room` more descriptors, for as long as it lives.
inline void leave_descriptors(pid_t pid, size_t room) {
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd/";
  uint64_t limit = 0;
  for (size_t free = 0; free <= room; ++limit) {
    struct stat ignored;
    if (::lstat((directory + std::to_string(limit)).c_str(), &ignored) != 0) ++free;
  }
  ProcessSpec spec;
  spec.arguments = {"/usr/bin/prlimit", "--pid", std::to_string(pid), "--nofile=" + std::to_string(limit - 1)};
  // Only a process of the same user may do it: in a container not even root.
  if (::geteuid() == 0) spec.user = user_of(pid);
  auto run = run_captured(std::move(spec), kTestWait);
  ASSERT_TRUE(run.has_value()) << run.error().message;
  EXPECT_EQ(run->status, ExitStatus{}) << run->err;
}

/// Whether a process has this file open.
inline bool has_open(pid_t pid, const std::filesystem::path& file) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    if (std::filesystem::read_symlink(entry.path(), error) == file) return true;
  }
  return false;
}

/// Every process below `pid`, as the host sees them.
inline std::vector<pid_t> descendants(pid_t pid) {
  std::vector<pid_t> found;
  std::ifstream list("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  for (pid_t child; list >> child;) {
    found.push_back(child);
    for (const pid_t deeper : descendants(child)) found.push_back(deeper);
  }
  return found;
}

/// Whether it still is, and is no corpse that waits for its parent.
inline bool is_alive(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] != 'Z' &&
         text[name_end + 2] != 'X';
}

/// Waits until none of them is alive.
inline bool wait_until_gone(const std::vector<pid_t>& processes) {
  const SteadyTime end = Clock::system().now() + kTestWait;
  for (const pid_t process : processes) {
    while (is_alive(process)) {
      if (Clock::system().now() > end) return false;
      std::this_thread::yield();
    }
  }
  return true;
}

}  // namespace kcoral::executor
