// Who knows whether nothing of an ended process is left on a device. Watch is the real one; tests have a fake.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace kcoral::devices {

class Clearance {
 public:
  virtual ~Clearance() = default;
  struct Handlers {
    std::function<void()> cleared;
    std::function<void(std::string reason)> stuck;
  };
  /// `cleared` runs once, when the device is clear of every process that ran a program and does not descend from one
  /// of `executors`, and no memory is missing that nobody holds; never after this was stopped. Where that takes longer
  /// than limits::kKillWait, `stuck` runs before, once, with what keeps it. Both on any thread, never from within this
  /// call.
  virtual void when_clear(int device, std::vector<pid_t> executors, Handlers handlers) = 0;
};

}  // namespace kcoral::devices
