#include "executor/supervisor/standby.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace kcoral::executor {

/// Hears what a runtime says before it has a program: at most that it cannot have one.
class Standby::Waiting final : public RuntimeEvents {
 public:
  Waiting(Standby& standby, std::unique_ptr<Runtime> runtime) : standby_(standby), runtime_(std::move(runtime)) {
    runtime_->set_events(*this);
  }

  bool is_usable() const { return !runtime_->has_failed() && !runtime_->has_ended(); }
  bool is_ready() const { return runtime_->is_ready(); }
  std::unique_ptr<Runtime> release() { return std::move(runtime_); }
  void end() { runtime_->end(); }

  void on_runtime_ready() override {}
  void on_runtime_failed(const Error& error) override { standby_.put_away(*this, error.message); }
  void on_runtime_frame(Frame frame) override {
    standby_.put_away(*this, fmt::format("it sent \"{}\" without a program", frame.type()));
  }
  void on_runtime_closed(std::optional<Error> error) override {
    standby_.put_away(*this, error ? error->message : "it closed its socket");
  }
  void on_runtime_ended() override { standby_.put_away(*this, "its process ended"); }
  void on_runtime_gone() override { standby_.remove(*this); }

 private:
  Standby& standby_;
  std::unique_ptr<Runtime> runtime_;
};

Standby::Standby(EventLoop& loop, Slot& slot, size_t size) : loop_(loop), slot_(slot), size_(size) {}

Standby::~Standby() = default;

Result<std::unique_ptr<Runtime>> Standby::take(const std::vector<int>& devices) {
  while (devices.empty() && !waiting_.empty()) {
    if (!waiting_.front()->is_usable()) {
      put_away(*waiting_.front(), "its process ended");
      continue;
    }
    auto ready = std::find_if(waiting_.begin(), waiting_.end(), [](const auto& each) { return each->is_ready(); });
    if (ready == waiting_.end()) ready = waiting_.begin();
    std::unique_ptr<Runtime> runtime = (*ready)->release();
    waiting_.erase(ready);
    return runtime;
  }
  return Runtime::prepare(loop_, slot_, devices, /*ahead=*/false);
}

void Standby::refill() {
  while (waiting_.size() < size_) {
    auto runtime = Runtime::prepare(loop_, slot_, /*devices=*/{}, /*ahead=*/true);
    if (!runtime) return spdlog::warn("no runtime can be prepared ahead: {}", runtime.error().message);
    waiting_.push_back(std::make_unique<Waiting>(*this, std::move(*runtime)));
  }
}

void Standby::put_away(Waiting& waiting, const std::string& reason) {
  const auto place =
      std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& each) { return each.get() == &waiting; });
  if (place == waiting_.end()) return;  // said before
  spdlog::warn("a runtime that stood by is put away: {}", reason);
  leaving_.splice(leaving_.end(), waiting_, place);
  waiting.end();
}

void Standby::remove(Waiting& waiting) {
  // Not from inside its own event.
  loop_.post([this, &waiting, alive = std::weak_ptr<const bool>(alive_)] {
    if (!alive.expired()) leaving_.remove_if([&](const auto& each) { return each.get() == &waiting; });
  });
}

}  // namespace kcoral::executor
