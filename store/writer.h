// The one thread that writes to the database: operations queue up, and whatever waits is committed in one transaction.
//
// It promises: operations of one urgency are applied in the order of submission; what an operation wants to tell the
// world runs after the COMMIT that makes it true, in the same order; an operation that fails, also one that meets a
// full disk, does not take the others of its batch with it. Syncing to disk is what a commit costs, so 64 operations
// that wait together cost about as much as one.
//
// Operations that fail nearly always do so before they have changed anything, which leaves nothing to undo. After one
// that did not, the transaction is rolled back and its operations run again, each in a transaction of its own: a
// savepoint for each would be a tenth of all that a short operation costs.
//
// `submit`, `close` and the figures may be called from any thread; everything that is handed in runs on the writer's
// own thread, which is the only one that touches the Database while the Writer lives.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "store/sqlite.h"
#include "store/undo_log.h"

namespace kcoral::store {

class Writer {
 public:
  using AfterCommit = std::function<void()>;

  struct Operation {
    /// Changes rows, and in memory what the undo log can take back: it runs again if the transaction around it is lost.
    /// What it returns runs after the commit.
    std::function<Result<AfterCommit>()> apply;
    /// Instead of AfterCommit, when nothing of the operation remains.
    std::function<void(const Error&)> failed;
    size_t bytes = 0;  // what it writes beyond a few hundred bytes
  };

  /// kDelayed: not before limits::kRecordsDelayStore have passed, or the writer is closed.
  enum class Urgency { kNow, kDelayed };

  /// `last` ends each batch, which may have no other operation: what follows from the operations before it, in their
  /// transaction. `after_batch` runs after the callbacks of each batch. `undo_log`, which the writer's thread alone
  /// uses from here on, follows the transactions.
  static Result<std::unique_ptr<Writer>> create(Database& database, UndoLog& undo_log, Operation last,
                                                std::function<void()> after_batch);
  ~Writer();

  void submit(Operation operation, Urgency urgency = Urgency::kNow);
  /// `last` runs soon, whether anything is submitted or not.
  void wake();

  /// How long each transaction took that was committed, its sync included.
  HistogramView committed() const { return committed_.view(); }
  uint64_t operations_committed() const { return operations_committed_.value(); }

  /// Commits all that was submitted, then ends the thread. Requires: nothing is submitted any more.
  void close();

 private:
  Writer(Database& database, UndoLog& undo_log, Operation last, std::function<void()> after_batch);

  struct Delayed {
    SteadyTime due;
    Operation operation;
  };

  void run();
  /// nullopt: all is committed that ever will be.
  std::optional<std::vector<Operation>> next_batch();
  void submit_what_is_due() KCORAL_REQUIRES(mutex_);
  void commit(std::span<Operation> batch);
  bool apply(std::span<Operation> batch, std::vector<Result<AfterCommit>>& results);

  Database& database_;
  UndoLog& undo_log_;
  const Operation last_;
  const std::function<void()> after_batch_;
  Statement begin_;
  Statement commit_;
  Histogram committed_;
  Counter operations_committed_;

  Mutex mutex_;
  ConditionVariable wakeup_;
  std::deque<Operation> waiting_ KCORAL_GUARDED_BY(mutex_);
  std::deque<Delayed> delayed_ KCORAL_GUARDED_BY(mutex_);
  bool woken_ KCORAL_GUARDED_BY(mutex_) = false;
  bool closing_ KCORAL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kcoral::store
