// Making the CUDA context of a runtime that stands by, so that its program does not wait for it.
//
// Starting the driver's library (cuInit) disturbs nobody and happens at once; the context itself is made under a lease
// that is asked for behind every program. It promises: the lease ends when the context is made or the runtime is gone;
// and either step takes limits::kContextWait at most, or the runtime has failed.
// Once a program has come, nothing more is begun. Belongs to its loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "executor/frame.h"
#include "executor/supervisor/device_lease.h"

namespace kcoral::executor {

class ContextMaking {
 public:
  struct Handlers {
    std::function<void(const nlohmann::json& body)> send;  // to the runtime
    std::function<void()> made;
    std::function<void(Error error)> failed;  // it cannot have a context; for one that has no program yet
  };
  /// Requires: the runtime is ready, and has no program.
  ContextMaking(EventLoop& loop, DeviceLeases& leases, std::vector<int> devices, Handlers handlers);
  ~ContextMaking();
  ContextMaking(const ContextMaking&) = delete;
  ContextMaking& operator=(const ContextMaking&) = delete;

  /// False: the frame is none of those that answer what was asked of the runtime here.
  bool take(const Frame& frame);

  /// A program has come for the runtime.
  void stop();
  /// Nothing is left of the runtime, whatever it was doing.
  void on_runtime_gone();

  /// Begun or made: the end of the process will be the end of a context.
  bool has_context() const { return step_ == Step::kMaking || step_ == Step::kMade; }
  /// It is not its turn yet.
  bool waits_for_device() const { return step_ == Step::kWaiting; }
  bool is_made() const { return step_ == Step::kMade; }

 private:
  enum class Step { kInitialising, kWaiting, kMaking, kMade, kStopped };
  void ask_for_lease();
  void begin();
  void give_up(std::string reason);
  void end_lease(bool processes_ended);
  void start_timer(const char* reason);
  void stop_timer();

  EventLoop& loop_;
  DeviceLeases& leases_;
  std::vector<int> devices_;
  Handlers handlers_;
  Step step_ = Step::kInitialising;
  bool is_stopped_ = false;
  std::unique_ptr<DeviceLease> lease_;
  std::optional<EventLoop::TimerId> timer_;
};

}  // namespace kcoral::executor
