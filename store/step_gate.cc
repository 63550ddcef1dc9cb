#include "store/step_gate.h"

namespace kcoral::store {

StepGate::Step::Step(StepGate& gate) : gate_(gate) {
  const MutexLock lock(gate_.mutex_);
  while (gate_.holds_ > 0) gate_.changed_.wait(gate_.mutex_);
  ++gate_.steps_;
}

StepGate::Step::~Step() {
  const MutexLock lock(gate_.mutex_);
  if (--gate_.steps_ == 0) gate_.changed_.notify_all();
}

StepGate::Hold::Hold(StepGate& gate) : gate_(gate) {
  const MutexLock lock(gate_.mutex_);
  ++gate_.holds_;  // first of all, so that steps which follow one another do not keep it waiting
  while (gate_.steps_ > 0) gate_.changed_.wait(gate_.mutex_);
}

StepGate::Hold::~Hold() {
  const MutexLock lock(gate_.mutex_);
  if (--gate_.holds_ == 0) gate_.changed_.notify_all();
}

}  // namespace kcoral::store
