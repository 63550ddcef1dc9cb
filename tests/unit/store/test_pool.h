// Executors that ask for one claim at a time and wait for it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "store/store.h"

namespace kcoral::store {

class TestPool final : public ExecutorPool {
 public:
  /// Is idle until it is given a claim or an error, or nothing is queued any more. Requires: nobody of that name waits.
  Result<std::optional<Claim>> claim(Store& store, const ExecutorRef& executor, bool has_several_gpus = false) {
    {
      const MutexLock lock(mutex_);
      entries_[executor.name] = {executor, has_several_gpus, true, std::nullopt};
    }
    store.serve(*this);
    const MutexLock lock(mutex_);
    for (;;) {
      Entry& entry = entries_.at(executor.name);
      std::optional<Result<Claim>> given = std::move(entry.given);
      if (given || (entry.is_idle && store.counts().queued == 0)) {
        entries_.erase(executor.name);
        if (!given) return std::optional<Claim>();
        if (!*given) return fail(given->error());
        return std::optional<Claim>(std::move(**given));
      }
      // Others may take what is queued, and tell nobody.
      (void)changed_.wait_until(mutex_, Clock::system().now() + std::chrono::milliseconds(1));
    }
  }

  /// Is idle, and waits for nothing yet.
  void offer(const ExecutorRef& executor) {
    const MutexLock lock(mutex_);
    entries_[executor.name] = {executor, false, true, std::nullopt};
  }

  std::optional<ExecutorRef> take(bool for_several_gpus) override {
    const MutexLock lock(mutex_);
    for (auto& [name, entry] : entries_) {
      if (entry.has_several_gpus != for_several_gpus || !std::exchange(entry.is_idle, false)) continue;
      return entry.executor;
    }
    return std::nullopt;
  }
  void put_back(const ExecutorRef& executor) override {
    const MutexLock lock(mutex_);
    entries_.at(executor.name).is_idle = true;
    changed_.notify_all();
  }
  void assign(const ExecutorRef& executor, Result<Claim> claim) override {
    const MutexLock lock(mutex_);
    entries_.at(executor.name).given = std::move(claim);
    changed_.notify_all();
  }
  void cancel(const Fence& fence) override {
    const MutexLock lock(mutex_);
    cancelled_.push_back(fence);
    changed_.notify_all();
  }
  /// The runs that are to be ended, in the order in which it was told.
  std::vector<Fence> cancelled() {
    const MutexLock lock(mutex_);
    return cancelled_;
  }

 private:
  struct Entry {
    ExecutorRef executor;
    bool has_several_gpus = false;
    bool is_idle = false;
    std::optional<Result<Claim>> given;
  };
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<Fence> cancelled_ KCORAL_GUARDED_BY(mutex_);
  std::map<std::string, Entry> entries_ KCORAL_GUARDED_BY(mutex_);
};

}  // namespace kcoral::store
