// Prunes what is kept longer, or takes more room, than the operator wants: the oldest answers beyond a capacity, and
// the whole record of requests that were submitted too long ago.
//
// It promises: only what has ended is touched; the answer of a request goes before its row does, and whoever asks for
// it meanwhile is told that it is gone; the writer is never held for longer than a step of kStepRows rows, and others
// have their turn between two steps; what a crash leaves half removed is removed at the next start.
//
// A step of the wall clock forth, which may be a mistake, ages nothing at once: ages grow at most twice as fast as time
// passes, so that whoever sees a wrong date has about as long to put it right as it is wrong by. A start takes the wall
// clock at its word, for which it has no other.
//
// Theory of operation. A row stops referring to content in one transaction, which writes down what is left to remove
// (table `doomed`); the content goes after that commit, and then the note. The capacity counts what answers contain, as
// their rows say: what RocksDB needs besides, and when compaction gives room back, is its own affair.
//
// Thread-safe; it works on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "store/content.h"
#include "store/reader.h"
#include "store/sqlite.h"
#include "store/store.h"
#include "store/writer.h"

namespace kcoral::store {

class Retention {
 public:
  static constexpr int kStepRows = 64;

  static Result<std::unique_ptr<Retention>> create(const RetentionBounds& bounds, Database& database, Readers& readers,
                                                   Content& content, Clock& clock);
  /// Nothing is pruned before. From here on the writer's thread alone uses the database.
  void start(Writer& writer);
  ~Retention();

  /// An answer of so many bytes was committed.
  void note_kept(uint64_t bytes);
  uint64_t kept_bytes() const { return kept_bytes_; }
  /// What went since it was made: answers that were too much, and requests, with their answers, that were too old.
  uint64_t answers_pruned() const { return answers_pruned_.value(); }
  uint64_t requests_forgotten() const { return requests_forgotten_.value(); }

  /// Prunes until nothing is due, which it does by itself now and then. Blocks.
  Status prune();

  /// Ends the thread after the step that it is at.
  void close();

 private:
  Retention(const RetentionBounds& bounds, Readers& readers, Content& content, Clock& clock)
      : bounds_(bounds),
        readers_(readers),
        content_(content),
        clock_(clock),
        age_now_(clock.wall_now()),
        looked_at_(clock.now()) {}
  Status prepare(Database& database);
  void run();
  /// Whether there may be more to do.
  Result<bool> step() KCORAL_REQUIRES(pruning_mutex_);
  Result<std::vector<int64_t>> due_answers();
  /// Now, as far as ages are concerned.
  WallTime age_now() KCORAL_REQUIRES(pruning_mutex_);
  Result<std::vector<int64_t>> due_requests() KCORAL_REQUIRES(pruning_mutex_);
  bool is_over_capacity() const { return bounds_.artifact_bytes_max && kept_bytes_ > *bounds_.artifact_bytes_max; }
  Status commit(std::function<Result<uint64_t>()> change);
  Result<uint64_t> prune_answer(int64_t seq);
  Result<uint64_t> forget_request(int64_t seq);
  Result<uint64_t> for_each(const std::vector<int64_t>& rows, Result<uint64_t> (Retention::*change)(int64_t seq));
  Result<bool> remove_doomed();

  const RetentionBounds bounds_;
  Readers& readers_;
  Writer* writer_ = nullptr;
  Content& content_;
  Clock& clock_;
  std::atomic<uint64_t> kept_bytes_{0};
  Counter answers_pruned_;
  Counter requests_forgotten_;

  // The writer's thread only.
  Statement find_;
  Statement delete_answer_;
  Statement delete_outputs_;
  Statement mark_pruned_;
  Statement doom_;
  Statement delete_request_;
  Statement delete_program_;
  Statement delete_blobs_;
  Statement delete_label_;
  Statement undoom_;

  Mutex pruning_mutex_;  // one at a time
  // What the last look took for now. It follows a clock that is put back at once, and one that is put forth, or right
  // again, at double speed: until then, or until the next start, less is forgotten than could be.
  WallTime age_now_ KCORAL_GUARDED_BY(pruning_mutex_);
  SteadyTime looked_at_ KCORAL_GUARDED_BY(pruning_mutex_);
  Mutex mutex_;
  ConditionVariable wakeup_;
  bool awake_ KCORAL_GUARDED_BY(mutex_) = true;  // at first there may be leftovers
  bool closing_ KCORAL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kcoral::store
