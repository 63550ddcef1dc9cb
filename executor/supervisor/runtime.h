// One runtime: forked by the zygote into namespaces of its own, perhaps long before there is a program for it, and
// ended with everything that its program started.
//
// It promises: `on_runtime_ready` or `on_runtime_failed` once, and once more after each `recycle`, unless the process
// ends before; what the process says, in order, then that it has ended; and after `end`, `on_runtime_gone` once, when
// nothing of it is left. Its processes are ended through the pidfd of their kcoral-init and in no other way.
//
// Belongs to its loop's thread, and ends before its slot. Not to be destroyed from inside one of its events.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/frame_channel.h"
#include "executor/supervisor/context_making.h"
#include "executor/supervisor/output_capture.h"
#include "executor/supervisor/slot.h"

namespace kcoral::executor {

class RuntimeEvents {
 public:
  virtual ~RuntimeEvents() = default;
  /// It waits for a program.
  virtual void on_runtime_ready() = 0;
  /// It will never be ready (again). kEnvironment: its sandbox was refused; kConflict: the program before left
  /// something behind that stays; kEngine: anything else.
  virtual void on_runtime_failed(const Error& error) = 0;
  /// Its CUDA context is made, while it waits for a program.
  virtual void on_runtime_warm() {}
  virtual void on_runtime_frame(Frame frame) = 0;
  /// It closed its socket, or sent what is no frame (then with an error).
  virtual void on_runtime_closed(std::optional<Error> error) = 0;
  /// Its process has ended; what it said before may still be unread (`receive_all`).
  virtual void on_runtime_ended() = 0;
  virtual void on_runtime_gone() = 0;
};

class Runtime final : private ProcessEvents {
 public:
  /// Asks `slot` for one. `ahead`: no program waits for it yet. An error: nothing was started.
  static Result<std::unique_ptr<Runtime>> prepare(EventLoop& loop, Slot& slot, bool ahead);
  ~Runtime() override;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Who hears of it from now on. Nobody at first, which is only right until the loop runs again.
  void set_events(RuntimeEvents& events) { events_ = &events; }

  /// It has said so; it may have ended since.
  bool is_ready() const { return said_ready_ && runtime_pidfd_; }
  /// It may be given a program, as far as can be seen now, whether the loop has heard of its end or not.
  bool is_usable() const;
  /// Its process has, whether the loop has heard of it or not.
  bool has_ended() const;
  /// Whether kcoral-init, which ends after everything else of the program, still lives. Looks now.
  bool is_alive() const;

  void send(const nlohmann::json& body, std::vector<OutgoingFd> fds = {});
  size_t queued_frames() const { return channel_->queued_frames(); }
  /// Delivers what it has sent, now.
  void receive_all() { channel_->receive_all(); }
  OutputCapture& out() { return *out_; }
  OutputCapture& err() { return *err_; }
  /// As the host sees it; 0 when it has ended already.
  pid_t host_pid() const;
  /// Of kcoral-init and the runtime: every process of the program descends from one of them.
  std::vector<pid_t> host_pids() const;

  /// Tells it to get ready for another program. Requires: the last one was answered.
  void recycle();
  uint64_t recycled_count() const { return recycled_count_; }

  /// Makes its CUDA context under a lease of those devices, while it has no program (context_making.h).
  /// Requires: it is ready.
  void make_context(DeviceLeases& leases, const std::vector<int>& devices);
  /// A program of it was granted a lease, and may have made a context.
  void note_lease() { had_lease_ = true; }
  /// Made or begun, by whomever: its end will be the end of a context.
  bool has_context() const { return had_lease_ || (context_ && context_->has_context()); }
  bool waits_for_device() const { return context_ && context_->waits_for_device(); }
  bool is_warm() const { return context_ && context_->is_made(); }

  /// A program has come for it: its priority is the executor's again, at once or when it is ready. No context is begun
  /// any more.
  void come_forward();

  /// Kills everything; `on_runtime_gone` comes later, or at once where nothing was started. Does nothing the second
  /// time.
  void end();
  /// Of the runtime's process, once it is known.
  const std::optional<ExitStatus>& status() const { return runtime_status_; }

 private:
  Runtime(EventLoop& loop, Slot& slot) : loop_(loop), slot_(slot) {}
  Status open(bool ahead);

  void on_prepared(UniqueFd init, UniqueFd runtime) override;
  void on_prepare_failed(const std::string& message) override;
  void on_exited(const ProcessEnd& end) override;

  void on_frame(Frame frame);
  void take_first_frame(const Frame& frame);
  void on_process_ended();
  void fail_early(Error error);
  void kill_init();
  void take_priority_if_ready();
  void say_if_gone();

  EventLoop& loop_;
  Slot& slot_;
  RuntimeEvents* events_ = nullptr;
  uint64_t id_ = 0;
  std::unique_ptr<FrameChannel> channel_;
  std::unique_ptr<OutputCapture> out_;
  std::unique_ptr<OutputCapture> err_;
  UniqueFd init_pidfd_;
  UniqueFd runtime_pidfd_;
  std::unique_ptr<ContextMaking> context_;
  bool runtime_watched_ = false;
  bool init_watched_ = false;
  bool said_ready_ = false;
  bool had_lease_ = false;
  uint64_t recycled_count_ = 0;
  bool is_behind_ = false;  // it lowers its priority before it says that it is ready
  bool is_wanted_ = false;
  bool has_failed_ = false;
  bool is_closed_ = false;  // its socket
  bool is_ending_ = false;
  bool no_processes_ = false;  // none were prepared
  bool init_gone_ = false;
  bool is_gone_ = false;
  std::optional<ExitStatus> runtime_status_;
  std::optional<ExitStatus> init_status_;
};

}  // namespace kcoral::executor
