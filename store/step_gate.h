// Lets somebody hold off for a while what others do in short steps.
//
// It promises: while a Hold lives, no Step is under way and none begins; those that are under way when it is taken are
// waited for. Thread-safe. Requires: a thread that has a Step does not wait for a Hold, nor for another Step.
#pragma once

#include "base/mutex.h"

namespace kcoral::store {

class StepGate {
 public:
  class [[nodiscard]] Step {
   public:
    explicit Step(StepGate& gate);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    StepGate& gate_;
  };

  class [[nodiscard]] Hold {
   public:
    explicit Hold(StepGate& gate);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    StepGate& gate_;
  };

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  int steps_ KCORAL_GUARDED_BY(mutex_) = 0;
  int holds_ KCORAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kcoral::store
