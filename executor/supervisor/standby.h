// Runtimes that wait for a program: forked ahead, so that a request does not wait for a fork.
//
// It promises: `take` gives a runtime that was alive at that moment, or asks for a new one. One that fails or ends
// while it waits is put away with a word in the log: whoever comes next gets a new one, and with it the reason, should
// it fail again. A runtime serves one program, or as many as the operator chose: then it comes back here once it has
// put itself right. One that was put away and cannot be ended is reported: it may hold a device.
//
// Belongs to its loop's thread, and ends before its slot.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "executor/supervisor/runtime.h"
#include "executor/supervisor/slot.h"

namespace kcoral::executor {

class Standby {
 public:
  struct Contexts {
    DeviceLeases* leases = nullptr;
    std::vector<int> devices;  // of whoever waits
    /// Hears once how the first of all went, or that none can be made, for nothing can be prepared.
    std::function<void(Status)> first;
  };
  struct Setup {
    size_t size = 0;                // how many are to wait
    uint64_t runs_per_runtime = 1;  // 0: any number
    bool step_back = false;         // those that wait have a lower priority, from which we can bring them forward
    Contexts contexts;              // that those that wait get; none where there are no leases
    std::function<void(std::string reason)> on_stuck;  // one could not be ended
  };
  Standby(EventLoop& loop, Slot& slot, Setup setup);
  ~Standby();
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  /// Ready, or still on its way; one with a context if there is one. An error: nothing was started.
  Result<std::unique_ptr<Runtime>> take();

  /// Asks for as many as are missing.
  void refill();
  /// Whether one of them could make its context, and others have the device.
  bool waits_for_device() const;

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
  Setup setup_;
  std::list<std::unique_ptr<Waiting>> waiting_;                       // those that came first go first
  std::list<std::unique_ptr<Waiting>> leaving_;                       // until nothing of them is left
  std::shared_ptr<const bool> alive_ = std::make_shared<bool>(true);  // expires with this object
};

}  // namespace kcoral::executor
