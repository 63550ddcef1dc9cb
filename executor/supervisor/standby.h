// Runtimes that wait for a program: forked ahead, so that a request does not wait for a fork.
//
// It promises: `take` gives a runtime that was alive at that moment, or asks for a new one. One that fails or ends
// while it waits is put away with a word in the log: whoever comes next gets a new one, and with it the reason, should
// it fail again. A runtime serves one program, or as many as the operator chose: then it comes back here once it has
// put itself right.
//
// Belongs to its loop's thread, and ends before its slot.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "executor/supervisor/runtime.h"
#include "executor/supervisor/slot.h"

namespace kcoral::executor {

class Standby {
 public:
  struct Contexts {
    DeviceLeases* leases = nullptr;
    std::vector<int> devices;  // of whoever waits
    /// Hears once how the first of all went.
    std::function<void(Status)> first;
  };
  /// `contexts`: those that wait get a CUDA context on these devices; none where there are no leases. `size`: how many
  /// are to wait; may be 0. `runs_per_runtime`: 0 for any number. `step_back`: those that wait have a
  /// lower priority, from which this process can bring them forward.
  Standby(EventLoop& loop, Slot& slot, size_t size, uint64_t runs_per_runtime, bool step_back, Contexts contexts);
  ~Standby();
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  /// Ready, or still on its way; one with a context if there is one. An error: nothing was started.
  Result<std::unique_ptr<Runtime>> take();

  /// Asks for as many as are missing.
  void refill();

  /// Whether it may serve another program after the one that it is about to be given.
  bool may_come_back(const Runtime& runtime) const;
  /// Takes back one that is ready for another program. It is the next to be given one.
  void give_back(std::unique_ptr<Runtime> runtime);

 private:
  class Waiting;

  void make_context(Runtime& runtime);
  void report_first(Status status);
  void put_away(Waiting& waiting, const Error& reason);
  void remove(Waiting& waiting);

  EventLoop& loop_;
  Slot& slot_;
  const size_t size_;
  const uint64_t runs_per_runtime_;
  const bool step_back_;
  Contexts contexts_;
  std::list<std::unique_ptr<Waiting>> waiting_;                       // those that came first go first
  std::list<std::unique_ptr<Waiting>> leaving_;                       // until nothing of them is left
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);  // expires with this object
};

}  // namespace kcoral::executor
