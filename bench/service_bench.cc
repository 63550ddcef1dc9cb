// What one trivial program costs from a client's first byte to the last byte of its answer, durable throughout, beside
// what the machine itself takes, measured in the same run; and how many programs a second are taken into the queue.
//
//   scripts/build release kcoral kcoral-executor service_bench
//   build/release/bin/service_bench [SECONDS_PER_SERIES [FILE.json [PART_OF_NAME]]]
//
// A table goes to standard output, the same figures as JSON to the file ("-" for none). With a part of a name only the
// series with such a name are measured.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "bench/cpu_times.h"
#include "bench/floor.h"
#include "bench/http_load.h"

extern char** environ;

namespace kcoral::bench {
namespace {

constexpr char kTrivialProgram[] =
    R"({"instructions":[{"op":"upload","id":"m","kind":"module","source":"def main():\n    return 42\n"},)"
    R"({"op":"get_function","id":"f","module":{"$ref":"m"},"name":"main"},)"
    R"({"op":"run","id":"r","fn":{"$ref":"f"}},{"op":"return","key":"value","value":{"$ref":"r"}}]})";

constexpr char kEndlessProgram[] =
    R"({"instructions":[{"op":"upload","id":"m","kind":"module","source":"import time\ntime.sleep(3600)\n"}],)"
    R"("options":{"timeout_seconds":3600}})";
constexpr char kSubmissions[] = "submissions, queued durably";

/// A server of its own on a free port and a fresh data directory, ended with this object.
class Server {
 public:
  static Result<std::unique_ptr<Server>> start(const std::string& data_dir, std::vector<std::string> flags) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "kcoral";
    std::vector<std::string> arguments{program,      "server", "--port",      "0",
                                       "--data-dir", data_dir, "--log-level", "error"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe2");
    UniqueFd out(ends[0]);
    UniqueFd in(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in.get(), 1);
    auto server = std::make_unique<Server>();
    const int spawned = ::posix_spawn(&server->pid_, program.c_str(), &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (spawned != 0) return fail(ErrorKind::kEnvironment, "cannot start {}", program);
    in.reset();
    std::string line;
    for (char byte; line.find('\n') == std::string::npos && ::read(out.get(), &byte, 1) == 1;) line += byte;
    const size_t colon = line.find("http://127.0.0.1:");
    if (colon == std::string::npos) return fail(ErrorKind::kEnvironment, "the server did not become ready");
    server->port_ = static_cast<uint16_t>(std::stoul(line.substr(colon + 17)));
    return server;
  }

  ~Server() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }

  uint16_t port() const { return port_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  uint16_t port_ = 0;
};

class Report {
 public:
  Report() {
    fmt::print("{:44} {:>9} {:>9} {:>9} {:>10}  {}\n", "", "p50 ms", "p99 ms", "max ms", "a second",
               "CPU ms a program: server, executors, runtimes");
  }

  /// `spent`: what a server's processes took meanwhile, in all.
  void add(const std::string& name, const Result<Series>& series, const CpuTimes* spent = nullptr) {
    if (!series || series->ms.empty()) {
      fmt::print("{:44} failed: {}\n", name, series ? "nothing was answered in time" : series.error().message);
      failed_ = true;
      return;
    }
    nlohmann::json row{{"name", name},
                       {"count", series->ms.size()},
                       {"p50_ms", series->quantile(0.5)},
                       {"p99_ms", series->quantile(0.99)},
                       {"max_ms", series->quantile(1)},
                       {"per_second", series->per_second()}};
    fmt::print("{:44} {:9.3f} {:9.3f} {:9.3f} {:10.1f}", name, series->quantile(0.5), series->quantile(0.99),
               series->quantile(1), series->per_second());
    if (spent != nullptr) {
      const auto programs = static_cast<double>(series->ms.size());
      row["cpu_ms"] = {{"server", spent->server_ms / programs},
                       {"executors", spent->executors_ms / programs},
                       {"runtimes", spent->runtimes_ms / programs}};
      fmt::print("  {:.2f} {:.2f} {:.2f}", spent->server_ms / programs, spent->executors_ms / programs,
                 spent->runtimes_ms / programs);
    }
    fmt::print("\n");
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  bool failed() const { return failed_; }
  const nlohmann::json& rows() const { return rows_; }

 private:
  nlohmann::json rows_ = nlohmann::json::array();
  bool failed_ = false;
};

void measure_service(Report& report, const std::string& directory, const std::string& name,
                     std::vector<std::string> flags, std::chrono::milliseconds duration) {
  const std::string data_dir = directory + "/data";
  auto server = Server::start(data_dir, std::move(flags));
  if (!server) return report.add(name, fail(server.error()));
  for (const int clients : {1, 8}) {
    const std::string series_name = fmt::format("{}, {} client{}", name, clients, clients == 1 ? "" : "s");
    const auto before = cpu_times_of((*server)->pid());
    Load load;
    load.port = (*server)->port();
    load.clients = clients;
    load.duration = duration;
    load.program = kTrivialProgram;
    const auto series = run_load(load);
    const auto after = cpu_times_of((*server)->pid());
    if (!before || !after) return report.add(series_name, fail((before ? after : before).error()));
    const CpuTimes spent{after->server_ms - before->server_ms, after->executors_ms - before->executors_ms,
                         after->runtimes_ms - before->runtimes_ms};
    report.add(series_name, series, &spent);
  }
  server->reset();
  std::filesystem::remove_all(data_dir);
}

/// Programs that are taken into the queue while the only worker is busy with another.
void measure_submissions(Report& report, const std::string& directory, const std::string& name,
                         std::chrono::milliseconds duration) {
  const std::string data_dir = directory + "/data";
  auto server = Server::start(data_dir, {"--device", "cpu", "--num-workers", "1", "--shutdown-grace-seconds", "0",
                                         "--max-queued-requests", "100000000", "--max-queued-per-client", "100000000"});
  if (!server) return report.add(name, fail(server.error()));
  Load load;
  load.port = (*server)->port();
  load.path = "/requests";
  load.expected = R"("state":)";
  load.program = kEndlessProgram;
  load.duration = std::chrono::milliseconds(1);
  if (auto occupied = run_load(load); !occupied) return report.add(name, fail(occupied.error()));
  load.program = kTrivialProgram;
  load.duration = duration;
  for (const int clients : {1, 64}) {
    load.clients = clients;
    const auto series = run_load(load);
    report.add(fmt::format("{}, {} connection{}", name, clients, clients == 1 ? "" : "s"), series);
  }
  server->reset();
  std::filesystem::remove_all(data_dir);
}

/// One kind of server, each measured with one client and with eight.
struct Kind {
  std::string name;
  std::vector<std::string> flags;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kinds{
      {"fresh, no preload", {}},
      {"fresh, NumPy preloaded", {"--preload", "numpy"}},
      {"reused, no preload", {"--max-requests-per-worker", "0"}},
      {"reused, NumPy preloaded", {"--max-requests-per-worker", "0", "--preload", "numpy"}},
  };
  return kinds;
}

int run(std::chrono::milliseconds duration, const std::string& json_path, const std::string& part_of_name) {
  char directory[] = "/var/tmp/kcoral-bench-XXXXXX";
  if (::mkdtemp(directory) == nullptr) return 1;
  Report report;
  report.add("floor: fork, namespaces, exit, wait", measure_namespaces(500));
  report.add("floor: 4 KiB appended and synced", measure_sync(directory, 1000));
  report.add("floor: loopback round trip", measure_loopback(5000));
  for (const Kind& kind : kinds()) {
    if (kind.name.find(part_of_name) == std::string::npos) continue;
    std::vector<std::string> flags{"--device", "cpu", "--num-workers", "2"};
    flags.insert(flags.end(), kind.flags.begin(), kind.flags.end());
    measure_service(report, directory, kind.name, std::move(flags), duration);
  }
  if (std::string_view(kSubmissions).find(part_of_name) != std::string_view::npos) {
    measure_submissions(report, directory, kSubmissions, duration);
  }
  std::filesystem::remove_all(directory);
  if (json_path != "-") std::ofstream(json_path) << report.rows().dump(2) << '\n';
  return report.failed() ? 1 : 0;
}

}  // namespace
}  // namespace kcoral::bench

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  if (seconds <= 0) {
    std::fprintf(stderr, "usage: service_bench [SECONDS_PER_SERIES [FILE.json [PART_OF_NAME]]]\n");
    return 2;
  }
  return kcoral::bench::run(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)), argc > 2 ? argv[2] : "-",
                            argc > 3 ? argv[3] : "");
}
