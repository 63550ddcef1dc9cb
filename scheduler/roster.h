// Which slots are idle, and which of them gets the next request.
//
// It promises: the request goes to the idle slot whose devices have the fewest busy slots, and of equal ones to the one
// that has been idle the longest or the shortest; a slot gets nothing while all its devices are out of use. A slot that
// was offered gets exactly one claim, or is withdrawn.
//
// Thread-safe. Claims and cancellations are handed on by whichever thread of the store brings them, in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "store/store.h"

namespace kcoral::scheduler {

class Roster final : public store::ExecutorPool {
 public:
  /// `on_claim`: what the slot of that name gets; nullopt if it was withdrawn before there was anything.
  using OnClaim = std::function<void(const std::string& slot, Result<std::optional<store::Claim>> claim)>;
  /// `on_cancel`: that run is to be ended, whoever has it, if somebody still does.
  using OnCancel = std::function<void(const store::Fence& fence)>;
  enum class Order {
    kLongestIdle,   // its next runtime is the most likely to be ready, where each program has one of its own
    kShortestIdle,  // where programs share one: the processor and the GPU still know that one
  };
  Roster(Order order, OnClaim on_claim, OnCancel on_cancel)
      : order_(order), on_claim_(std::move(on_claim)), on_cancel_(std::move(on_cancel)) {}

  /// It can take a request from now on. `devices`: what its programs can see, in order; none on a CPU server.
  void offer(const store::ExecutorRef& executor, const std::vector<int>& devices);
  /// It can take none, and counts as busy no more. True if it was idle; otherwise `on_claim` comes for what it was
  /// offered, unless that has come before.
  bool withdraw(const std::string& slot);

  void set_unusable_devices(std::set<int> devices);

  std::optional<store::ExecutorRef> take(bool for_several_gpus) override;
  void put_back(const store::ExecutorRef& executor) override;
  void assign(const store::ExecutorRef& executor, Result<store::Claim> claim) override;
  void cancel(const store::Fence& fence) override { on_cancel_(fence); }

 private:
  struct Entry {
    store::ExecutorRef executor;
    std::vector<int> devices;
    enum class Use { kNone, kIdle, kTaken, kBusy } use = Use::kNone;
    int64_t offered = 0;  // the number of its offer: lower is older
  };
  bool is_usable(const Entry& entry) const KCORAL_REQUIRES(mutex_);
  size_t load(const Entry& entry) const KCORAL_REQUIRES(mutex_);

  const Order order_;
  const OnClaim on_claim_;
  const OnCancel on_cancel_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ KCORAL_GUARDED_BY(mutex_);
  std::set<int> unusable_devices_ KCORAL_GUARDED_BY(mutex_);
  int64_t offers_ KCORAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kcoral::scheduler
