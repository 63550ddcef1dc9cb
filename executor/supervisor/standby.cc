#include "executor/supervisor/standby.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::executor {

/// Hears what a runtime says before it has a program: that it is ready, or at most that it cannot have one.
class Standby::Waiting final : public RuntimeEvents {
 public:
  Waiting(Standby& standby, std::unique_ptr<Runtime> runtime) : standby_(standby), runtime_(std::move(runtime)) {
    runtime_->set_events(*this);
  }
  ~Waiting() override {
    if (kill_timer_) standby_.loop_.cancel(*kill_timer_);
  }

  bool is_usable() const { return runtime_->is_usable(); }
  bool is_ready() const { return runtime_->is_ready(); }
  bool is_warm() const { return runtime_->is_warm(); }
  bool waits_for_device() const { return runtime_->waits_for_device(); }
  std::unique_ptr<Runtime> release() { return std::move(runtime_); }
  /// `stuck` runs if nothing of it should be left by then, and something is.
  void end(std::function<void()> stuck) {
    kill_timer_ = standby_.loop_.run_after(limits::kKillWait, std::move(stuck));
    runtime_->end();
  }

  void on_runtime_ready() override { standby_.make_context(*runtime_); }
  void on_runtime_failed(const Error& error) override { put_away(error); }
  void on_runtime_warm() override { standby_.report_first({}); }
  void on_runtime_frame(Frame frame) override {
    put_away({ErrorKind::kEngine, fmt::format("it sent \"{}\" without a program", frame.type())});
  }
  void on_runtime_closed(std::optional<Error> error) override {
    put_away(error ? *error : Error{ErrorKind::kEngine, "it closed its socket"});
  }
  void on_runtime_ended() override { put_away(ended()); }
  void on_runtime_gone() override {
    if (kill_timer_) standby_.loop_.cancel(*kill_timer_);
    standby_.remove(*this);
  }

  static Error ended() { return {ErrorKind::kEngine, "its process ended"}; }

 private:
  void put_away(const Error& reason) { standby_.put_away(*this, reason); }

  Standby& standby_;
  std::unique_ptr<Runtime> runtime_;
  std::optional<EventLoop::TimerId> kill_timer_;
};

Standby::Standby(EventLoop& loop, Slot& slot, Setup setup) : loop_(loop), slot_(slot), setup_(std::move(setup)) {}

Standby::~Standby() = default;

Result<std::unique_ptr<Runtime>> Standby::take() {
  while (!waiting_.empty()) {
    auto ready = std::find_if(waiting_.begin(), waiting_.end(), [](const auto& each) { return each->is_warm(); });
    if (ready == waiting_.end()) {
      ready = std::find_if(waiting_.begin(), waiting_.end(), [](const auto& each) { return each->is_ready(); });
    }
    if (ready == waiting_.end()) ready = waiting_.begin();
    if (!(*ready)->is_usable()) {
      put_away(**ready, Waiting::ended());
      continue;
    }
    std::unique_ptr<Runtime> runtime = (*ready)->release();
    waiting_.erase(ready);
    runtime->come_forward();
    return runtime;
  }
  return Runtime::prepare(loop_, slot_, /*ahead=*/false);
}

void Standby::make_context(Runtime& runtime) {
  const Contexts& contexts = setup_.contexts;
  if (contexts.leases != nullptr) runtime.make_context(*contexts.leases, contexts.devices);
}

void Standby::refill() {
  while (waiting_.size() < setup_.size) {
    auto runtime = Runtime::prepare(loop_, slot_, /*ahead=*/setup_.step_back);
    if (!runtime) {
      spdlog::warn("no runtime can be prepared ahead: {}", runtime.error().message);
      if (waiting_.empty()) report_first(fail(runtime.error()));
      return;
    }
    waiting_.push_back(std::make_unique<Waiting>(*this, std::move(*runtime)));
  }
}

bool Standby::waits_for_device() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const auto& each) { return each->waits_for_device(); });
}

bool Standby::may_come_back(const Runtime& runtime) const {
  return setup_.runs_per_runtime == 0 || runtime.recycled_count() + 1 < setup_.runs_per_runtime;
}

void Standby::give_back(std::unique_ptr<Runtime> runtime) {
  waiting_.push_front(std::make_unique<Waiting>(*this, std::move(runtime)));
}

void Standby::report_first(Status status) {
  if (setup_.contexts.first) std::exchange(setup_.contexts.first, nullptr)(std::move(status));
}

void Standby::put_away(Waiting& waiting, const Error& reason) {
  const auto place =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& each) { return each.get() == &waiting; });
  if (place == waiting_.end()) return;  // said before
  spdlog::warn("a runtime that stood by is put away: {}", reason.message);
  leaving_.splice(leaving_.end(), waiting_, place);
  waiting.end([this, message = reason.message] {
    setup_.on_stuck(fmt::format("a runtime that stood by could not be ended within {} s, after it was put away: {}",
                                limits::kKillWait.count(), message));
  });
  report_first(fail(reason));
}

void Standby::remove(Waiting& waiting) {
  // Not from inside its own event.
  loop_.post([this, &waiting, alive = std::weak_ptr<const bool>(alive_)] {
    if (!alive.expired()) leaving_.remove_if([&](const auto& each) { return each.get() == &waiting; });
  });
}

}  // namespace kcoral::executor
