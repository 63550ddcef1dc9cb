// One slot: bubblewrap with the zygote inside, from its start to its end.
//
// It promises: `on_ready` once, or `on_lost`; after `on_lost` nothing. Destroying a Slot ends it, for which it
// blocks up to 1.5 s, and with it every process that was ever started in it (ARCHITECTURE.md, "Sandbox"). A slot that
// was lost is not mended: the executor ends and a new one takes its place.
//
// Belongs to its loop's thread, which must be a permanent one: the slot dies with the thread that started it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/child_process.h"
#include "executor/frame_channel.h"
#include "executor/program_limits.h"
#include "executor/sandbox/bubblewrap.h"

namespace kcoral::executor {

struct SlotConfig {
  SlotSpec sandbox;
  std::vector<std::string> preload;
  std::vector<int> devices;       // by the server's numbers; none on a CPU server
  bool reuse = false;             // a runtime may be given more than one program
  uint64_t memory_bytes_max = 0;  // of each; 0: as much as there is
  ProgramLimits limits;
};

/// The end of one of a program's processes, as the zygote saw it.
struct ProcessEnd {
  enum class Process { kRuntime, kInit };
  Process process = Process::kRuntime;
  ExitStatus status;
};

/// What the zygote says about one runtime and its kcoral-init.
class ProcessEvents {
 public:
  virtual ~ProcessEvents() = default;
  virtual void on_prepared(UniqueFd init, UniqueFd runtime) = 0;
  /// Nothing was started.
  virtual void on_prepare_failed(const std::string& message) = 0;
  virtual void on_exited(const ProcessEnd& end) = 0;
};

class Slot {
 public:
  struct Handlers {
    std::function<void(std::map<std::string, std::string> versions)> on_ready;
    /// `permanent`: trying again would end the same way.
    std::function<void(std::string reason, bool permanent)> on_lost;
  };

  static Result<std::unique_ptr<Slot>> start(EventLoop& loop, const SlotConfig& config, Handlers handlers);
  ~Slot();
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  /// Asks for a fresh runtime, and returns its number. `ahead`: no program waits for it yet.
  /// `events` hears on_prepared or on_prepare_failed, until `forget`.
  uint64_t prepare(ProcessEvents& events, bool ahead, UniqueFd runtime_socket, UniqueFd out, UniqueFd err);
  void forget(uint64_t id) { listeners_.erase(id); }

 private:
  Slot(EventLoop& loop, Handlers handlers) : loop_(loop), handlers_(std::move(handlers)) {}
  Status launch(const SlotConfig& config);
  Status watch_process(UniqueFd socket, UniqueFd error_output);
  void on_frame(Frame frame);
  Status take_frame(Frame frame);
  Status take_frame_about_runtime(const std::string& type, Frame frame);
  void read_error_output();
  void on_ending(std::string reason);
  void on_process_ended();
  void lose(std::string reason, bool permanent);

  EventLoop& loop_;
  Handlers handlers_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, ProcessEvents*> listeners_;
  std::optional<ChildProcess> process_;
  std::unique_ptr<FrameChannel> channel_;
  UniqueFd error_output_;
  std::string error_tail_;         // the end of what the slot wrote to standard error
  std::string error_line_;         // its last line, not yet complete
  std::string ending_reason_;      // why it is about to end, when it said so or broke off
  bool failed_by_itself_ = false;  // zygote_failed came
  bool is_ready_ = false;
  bool is_lost_ = false;
  bool watching_process_ = false;
  std::optional<EventLoop::TimerId> timer_;
};

}  // namespace kcoral::executor
