// Which queued request is next, and how many of its client's are ahead of it: the queue's rows, mirrored in memory.
//
// The order. Higher priorities first. Between the clients of one priority, deficit round robin on executor time: each
// round brings every client that waits a quantum, a client is served while it has some left, and what its programs took
// is charged to it. What a program will take is not known before, so that it is charged what this client's programs
// took last, and the difference once it has ended: a client that took too much sits out as many rounds. Within a client
// first in, first out.
//
// It promises: nobody starves. Of the executor time that is given out, one part in kOldestShare goes to whoever was
// submitted first, whatever its priority and client. So while a request waits, all that are not older than it get at
// most kOldestShare - 1 times what the older ones take, and one program and kOldestShare quanta more. Programs for
// several GPUs have executors, and therefore an order, of their own.
//
// Thread-safe; changes come from the writer's thread alone.
//
// Source: M. Shreedhar, G. Varghese, "Efficient Fair Queueing Using Deficit Round Robin", SIGCOMM 1995. That costs are
// charged afterwards is the variant called surplus round robin. Rounds in which nobody would be served are skipped.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/uuid.h"

namespace kcoral::store {

class FairQueue {
 public:
  static constexpr int64_t kOldestShare = 8;
  static constexpr std::chrono::microseconds kQuantum{10'000};
  /// What a start costs at least: without it a client whose programs fail at once would never be charged.
  static constexpr std::chrono::microseconds kCostMin{500};
  /// Of clients that have nothing queued and nothing running, how many are remembered with what they owe.
  static constexpr size_t kDebtorsMax = 10'000;

  /// A row of the queue.
  struct Item {
    int64_t seq = 0;  // in the order of submission
    std::string client;
    int priority = 0;
    bool for_several_gpus = false;
    SteadyTime submitted{};
    SteadyTime queued{};  // for the first time, or again after a run that was lost
  };
  /// What was started.
  struct Run {
    Item item;
    SteadyTime begun{};
  };

  FairQueue();
  ~FairQueue();

  /// Requires: no item of that seq is queued.
  void push(const Item& item);
  /// It ended, or was cancelled, while it was queued. Requires: it is queued.
  /// Returns it with the times that the queue knows it by.
  Item remove(const Item& item);

  /// Who is next; nullopt if none of that kind is queued.
  std::optional<Item> next(bool for_several_gpus) const;
  /// It starts: the queue moves on, and its client is charged an estimate. Requires: it is what `next` said.
  void start(const Uuid& request_id, const Item& item, SteadyTime now);
  /// As if it had not been started. Requires: it was, and has not ended.
  void undo_start(const Uuid& request_id, const Item& item);
  /// Its run is over and took so long; 0 if it never began. Nothing happens if it was not started.
  void ended(const Uuid& request_id, std::chrono::microseconds took);
  /// nullopt if it was not started, or has ended.
  std::optional<Run> run_of(const Uuid& request_id) const;

  size_t size() const;
  size_t size_of(const std::string& client) const;
  /// When the oldest of those that are queued was submitted; nullopt if none is.
  std::optional<SteadyTime> oldest_submitted() const;
  /// How many of the same client's requests are ahead of it. Requires: it is queued.
  uint64_t position(const Item& item) const;

 private:
  struct Kind;

  mutable Mutex mutex_;
  std::array<std::unique_ptr<Kind>, 2> kinds_ KCORAL_GUARDED_BY(mutex_);  // by for_several_gpus
};

}  // namespace kcoral::store
