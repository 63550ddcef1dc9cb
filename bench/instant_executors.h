// Executors without programs: whatever is assigned to one is marked as running and has completed at once.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "store/store.h"

namespace kcoral::bench {

/// Runs so many requests at once, from the store's callbacks only. Thread-safe.
class InstantExecutors final : public store::ExecutorPool {
 public:
  InstantExecutors(store::Store& store, int count) : store_(store), idle_(count) {
    schema::Part part;
    part.extent.memory = SealedMemory::copy_of("a returned value").value();
    part.extent.length = part.extent.memory->size_bytes();
    part.sha256 = Sha256::of("a returned value");
    answer_ = std::make_shared<const schema::Answer>(schema::make_result_answer(R"({"status":"COMPLETED"})", {part}));
  }

  /// From now on they take one request of a priority above 0 for each `admit_one`, and what else has its turn
  /// meanwhile: the rest of the queue stays.
  void ration() { is_rationed_ = true; }
  void admit_one() { ++rations_; }

  std::optional<store::ExecutorRef> take(bool for_several_gpus) override {
    if (for_several_gpus || !take_one_of(idle_)) return std::nullopt;
    if (!is_rationed_ || take_one_of(rations_)) return store::ExecutorRef{"executor", 1};
    ++idle_;
    return std::nullopt;
  }
  void put_back(const store::ExecutorRef&) override {
    ++idle_;
    ++rations_;
  }
  void assign(const store::ExecutorRef&, Result<store::Claim> claim) override {
    KCORAL_CHECK(claim);
    if (claim->priority <= 0) ++rations_;
    store_.mark_running(claim->fence, 1);
    store::Completion completion;
    completion.answer = answer_;
    completion.reason = "every instruction ran";
    completion.times.elapsed_ms = 1;
    store_.finish(claim->fence, std::move(completion), [this](const Status&) {
      ++idle_;
      store_.executor_became_idle();
    });
  }
  void cancel(const store::Fence&) override {}  // by then it has completed

 private:
  static bool take_one_of(std::atomic<int>& count) {
    for (int seen = count; seen > 0;) {
      if (count.compare_exchange_weak(seen, seen - 1)) return true;
    }
    return false;
  }

  store::Store& store_;
  std::shared_ptr<const schema::Answer> answer_;
  std::atomic<int> idle_;
  std::atomic<bool> is_rationed_{false};
  std::atomic<int> rations_{0};
};

}  // namespace kcoral::bench
