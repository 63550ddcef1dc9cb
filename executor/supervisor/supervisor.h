// The executor process: one slot, one program at a time, and the server at the other end of a socket.
//
// It waits for `configure`, takes the slot's file lock (an executor of an earlier server may still be ending), reads
// our files, gives up root for good, starts the slot, and then runs one program after another. It ends when the
// server's socket closes, whatever it is doing: the kernel closes it when the server dies, and everything that the
// executor started dies with the executor. That is why it needs no signal on its parent's death (which would follow the
// thread that started it, not the server). It also ends after `broken`, when the slot is lost or cannot be set up.
//
// Belongs to its loop's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "executor/frame_channel.h"
#include "executor/install_paths.h"
#include "executor/supervisor/program_run.h"
#include "executor/supervisor/slot.h"
#include "executor/supervisor/standby.h"

namespace kcoral::executor {

class Supervisor {
 public:
  /// `stop` of the loop is called when the process should end.
  static Result<std::unique_ptr<Supervisor>> create(EventLoop& loop, InstallPaths paths, UniqueFd server);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

 private:
  Supervisor(EventLoop& loop, InstallPaths paths) : loop_(loop), paths_(std::move(paths)) {}

  void on_frame(Frame frame);
  Status take_frame(Frame frame);
  Status configure(const Frame& frame);
  Status run_program(Frame frame);
  Status take_blobs(Frame frame);
  Status take_device_holder(const Frame& frame);
  Status take_cancel(const Frame& frame);

  /// The set-up failed.
  void give_up(const Error& error);
  Status open_lock(const std::string& path);
  void take_lock();
  Status start_slot();
  Status give_up_root() const;

  void on_ready(std::map<std::string, std::string> versions);
  /// Whether programs can use the GPU here shows before the first one comes.
  void await_first_context();
  void on_first_context(const Status& made);
  void on_run_done(ProgramRun::Aftermath aftermath);
  void say_idle();
  /// `permanent`: only for what went wrong while it was set up and would do so again.
  void break_off(const std::string& message, bool permanent);

  EventLoop& loop_;
  InstallPaths paths_;
  std::unique_ptr<FrameChannel> server_;
  std::optional<DeviceLeases> leases_;  // outlives the runtimes
  std::optional<SlotConfig> config_;
  std::chrono::milliseconds lease_wait_max_{};
  size_t standby_size_ = 0;
  uint64_t runs_per_runtime_ = 1;
  UniqueFd lock_;
  std::string lock_path_;
  SteadyTime lock_wait_said_{};
  std::optional<EventLoop::TimerId> lock_timer_;
  std::optional<EventLoop::TimerId> context_timer_;
  std::unique_ptr<Slot> slot_;
  std::unique_ptr<Standby> standby_;  // after slot_: it ends first
  bool is_set_up_ = false;            // it was idle once
  bool is_idle_ = false;
  bool is_broken_ = false;
  std::map<std::string, std::string> versions_;
  std::unique_ptr<ProgramRun> run_;  // after slot_, too
};

}  // namespace kcoral::executor
