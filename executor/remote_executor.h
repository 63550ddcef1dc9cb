// An Executor that is a process of its own: kcoral-executor, spoken to in frames (docs/frames.md).
//
// It promises what executor.h promises, also when the process dies, hangs or says what it must not: then the run is
// lost, the process is ended, and a new one is started after a pause that grows from 100 ms to 10 s while starts keep
// failing. Where the first limits::kStartsBeforeReadyMax of them fail it is lost for good: nothing says that this host
// can run one. One that was ever idle is never lost for good. Nothing that the executor has waits for it without end:
// not a run, not a device that it was granted, not the slot after an outcome. Destroying a RemoteExecutor ends its
// process, and with it the slot and whatever runs there; no event follows.
//
// Belongs to its loop's thread (executor.h); destroyed on it, or after the loop has ended.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/child_process.h"
#include "executor/executor.h"
#include "executor/frame_channel.h"
#include "executor/outcome_frames.h"
#include "executor/program_limits.h"
#include "executor/run_id.h"

namespace kcoral::executor {

struct ExecutorConfig {
  std::string name;                  // of the slot, in logs and audit records
  std::string executor_path;         // kcoral-executor (install_paths.h)
  std::string log_level = "info";    // as spdlog names it
  std::string lock_path;             // a file in the data directory; one for each slot
  std::string python;                // interpreter (python_finder.h)
  std::vector<std::string> preload;  // modules that the zygote imports
  size_t standby = 1;                // runtimes that are forked ahead
  uint64_t runs_per_runtime = 1;     // programs that one of them serves; 0: any number
  uint64_t memory_bytes_max = 0;     // of one program's processes; 0: as much as there is
  uid_t uid = 65534;                 // of the slot's processes; never 0
  gid_t gid = 65534;
  std::map<std::string, std::string> environment;  // the operator's additions to the allow list
  std::vector<std::string> read_only_paths;        // what the interpreter needs, and what the operator adds
  std::vector<std::string> hidden_paths;           // never shown in the slot: the data directory
  ProgramLimits limits;
  std::vector<int> devices;               // of the slot, by the server's numbers; none on a CPU server
  std::vector<std::string> device_nodes;  // that it is shown: those of its devices and what belongs to all
  std::chrono::milliseconds lease_wait_max{limits::kLeaseWait};
};

class RemoteExecutor : public Executor {
 public:
  RemoteExecutor(EventLoop& loop, ExecutorConfig config);
  ~RemoteExecutor() override;
  RemoteExecutor(const RemoteExecutor&) = delete;
  RemoteExecutor& operator=(const RemoteExecutor&) = delete;

  const std::string& name() const override { return config_.name; }
  const std::vector<int>& devices() const override { return config_.devices; }
  int pid() const override { return process_ ? process_->pid() : 0; }
  void start(ExecutorEvents& events) override;
  void run(Assignment assignment) override;
  void grant_lease(uint64_t id, const std::vector<int>& devices) override;
  void deny_lease(uint64_t id, const std::string& message) override;
  void tell_device_holder(const Uuid& request_id) override;
  void cancel(const Uuid& request_id) override;

 private:
  void launch();
  Status try_launch();
  Status send_configure();
  void on_frame(Frame frame);
  Status take_frame(Frame frame);
  Status take_frame_about_run(const std::string& type, Frame frame);
  Status take_idle(const Frame& frame);
  Status take_running(const Frame& frame);
  Status take_records(const Frame& frame);
  Status take_output(Frame frame);
  Status take_outcome(Frame frame);
  Status take_lease_request(const Frame& frame);
  Status take_lease_end(const Frame& frame);
  Status take_broken(const Frame& frame);
  Status take_quarantined(const Frame& frame);
  void on_process_ended();
  void lose(const std::string& reason, bool permanent);
  void kill_process();
  void watch_over_run(std::chrono::milliseconds timeout);
  void stop_watching_over_run();
  void watch_over_rest();
  void stop_watching_over_rest();

  EventLoop& loop_;
  ExecutorConfig config_;
  ExecutorEvents* events_ = nullptr;
  std::optional<ChildProcess> process_;
  std::unique_ptr<FrameChannel> channel_;
  ReportDecoder report_;
  bool is_idle_ = false;
  bool was_ever_idle_ = false;
  int failed_starts_ = 0;        // counted until it was idle once
  std::optional<RunId> run_;     // until it is idle again: records come after the outcome
  bool is_outcome_due_ = false;  // of run_
  bool is_quarantined_ = false;  // until it is idle again
  std::chrono::milliseconds pause_;
  std::optional<EventLoop::TimerId> restart_timer_;
  std::chrono::milliseconds run_timeout_{};  // none is left of it once the run is cancelled
  std::optional<EventLoop::TimerId> run_timer_;
  std::optional<EventLoop::TimerId> rest_timer_;
  struct Lease {
    bool for_program = false;
    bool is_granted = false;
  };
  std::map<uint64_t, Lease> leases_;                                  // asked for and not ended
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);  // expires with this object
};

}  // namespace kcoral::executor
