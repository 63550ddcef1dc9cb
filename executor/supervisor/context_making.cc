#include "executor/supervisor/context_making.h"

#include <utility>

#include "executor/frame_fields.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

// Below whatever a program may ask for.
constexpr int kContextPriority = -1000;

}  // namespace

ContextMaking::ContextMaking(EventLoop& loop, DeviceLeases& leases, std::vector<int> devices, Handlers handlers)
    : loop_(loop), leases_(leases), devices_(std::move(devices)), handlers_(std::move(handlers)) {
  start_timer("CUDA did not start in time");
  handlers_.send({{"type", "initialise"}});
}

ContextMaking::~ContextMaking() { stop_timer(); }

bool ContextMaking::take(const Frame& frame) {
  const std::string type = frame.type();
  if (type == "initialised" && step_ == Step::kInitialising) {
    step_ = Step::kStopped;
    stop_timer();
    if (!is_stopped_) ask_for_lease();
    return true;
  }
  if (type == "context_made" && step_ == Step::kMaking) {
    step_ = Step::kMade;
    stop_timer();
    end_lease(/*processes_ended=*/false);
    if (!is_stopped_) handlers_.made();
    return true;
  }
  if (type == "context_failed" && (step_ == Step::kInitialising || step_ == Step::kMaking)) {
    auto message = string_field(frame.body, "message");
    give_up("no CUDA context can be made: " +
            (message ? message->substr(0, limits::kShownBytesMax) : "no reason given"));
    return true;
  }
  return false;
}

void ContextMaking::ask_for_lease() {
  step_ = Step::kWaiting;
  lease_ = leases_.ask({.purpose = LeasePurpose::kContext, .priority = kContextPriority, .devices = devices_},
                       {.granted = [this] { begin(); }});
}

void ContextMaking::begin() {
  step_ = Step::kMaking;
  start_timer("a CUDA context was not made in time");
  handlers_.send({{"type", "make_context"}});
}

void ContextMaking::start_timer(const char* reason) {
  timer_ = loop_.run_after(limits::kContextWait, [this, reason] {
    timer_.reset();
    // It may be at the device still: the lease ends with the process.
    if (!is_stopped_) handlers_.failed({ErrorKind::kTimeout, reason});
  });
}

void ContextMaking::stop_timer() {
  if (timer_) loop_.cancel(*std::exchange(timer_, std::nullopt));
}

void ContextMaking::give_up(std::string reason) {
  step_ = Step::kStopped;
  stop_timer();
  // A program that comes all the same meets the same trouble, and is told in its own words.
  if (is_stopped_) return end_lease(/*processes_ended=*/false);
  // What was made of it may be on the device until the process is gone, and so the lease ends with that.
  handlers_.failed({ErrorKind::kEnvironment, std::move(reason)});
}

void ContextMaking::stop() {
  is_stopped_ = true;
  if (step_ != Step::kWaiting) return;
  step_ = Step::kStopped;
  end_lease(/*processes_ended=*/false);
}

void ContextMaking::on_runtime_gone() { end_lease(/*processes_ended=*/true); }

void ContextMaking::end_lease(bool processes_ended) {
  if (lease_) lease_->end(processes_ended);
  lease_.reset();
}

}  // namespace kcoral::executor
