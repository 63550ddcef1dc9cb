#include "store/writer.h"

#include <pthread.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::store {
namespace {

// A batch ends here so that whoever came first does not wait for everybody (ARCHITECTURE.md, "Data").
constexpr size_t kBatchOperationsMax = 64;
constexpr size_t kBatchBytesMax = limits::kMiB;
// From a sync that a disk's own cache takes to one that waits for a disk in trouble.
constexpr double kCommitSecondsBounds[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
                                           0.025,  0.05,    0.1,    0.25,  0.5,    1,     2.5};

}  // namespace

Writer::Writer(Database& database, UndoLog& undo_log, Operation last, std::function<void()> after_batch)
    : database_(database),
      undo_log_(undo_log),
      last_(std::move(last)),
      after_batch_(std::move(after_batch)),
      committed_(kCommitSecondsBounds) {}

Result<std::unique_ptr<Writer>> Writer::create(Database& database, UndoLog& undo_log, Operation last,
                                               std::function<void()> after_batch) {
  std::unique_ptr<Writer> writer(new Writer(database, undo_log, std::move(last), std::move(after_batch)));
  const std::pair<Statement*, const char*> statements[] = {
      {&writer->begin_, "BEGIN IMMEDIATE"},
      {&writer->commit_, "COMMIT"},
  };
  for (const auto& [statement, sql] : statements) {
    auto prepared = database.prepare(sql);
    if (!prepared) return fail(prepared.error());
    *statement = std::move(*prepared);
  }
  writer->thread_ = std::thread([raw = writer.get()] { raw->run(); });
  ::pthread_setname_np(writer->thread_.native_handle(), "store-writer");
  return writer;
}

Writer::~Writer() { close(); }

void Writer::submit(Operation operation, Urgency urgency) {
  bool wake = true;
  {
    const MutexLock lock(mutex_);
    if (urgency == Urgency::kNow) {
      waiting_.push_back(std::move(operation));
    } else {
      wake = delayed_.empty();  // else it waits for an earlier one already
      delayed_.push_back({Clock::system().now() + limits::kRecordsDelayStore, std::move(operation)});
    }
  }
  if (wake) wakeup_.notify_one();
}

void Writer::wake() {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  wakeup_.notify_one();
}

void Writer::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  wakeup_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Writer::run() {
  for (;;) {
    std::optional<std::vector<Operation>> batch = next_batch();
    if (!batch) return;
    batch->push_back(last_);
    commit(*batch);
    // The closures go before anything else happens: whoever waits for the end of their operations watches them.
    batch.reset();
    after_batch_();
    if (auto checkpointed = database_.checkpoint_if_due(); !checkpointed) {
      spdlog::warn("the write-ahead log could not be moved into the database: {}", checkpointed.error().message);
    }
  }
}

std::optional<std::vector<Writer::Operation>> Writer::next_batch() {
  const MutexLock lock(mutex_);
  for (submit_what_is_due(); waiting_.empty() && !woken_ && !closing_; submit_what_is_due()) {
    if (delayed_.empty()) {
      wakeup_.wait(mutex_);
    } else {
      (void)wakeup_.wait_until(mutex_, delayed_.front().due);
    }
  }

  if (waiting_.empty() && closing_) return std::nullopt;
  woken_ = false;
  std::vector<Operation> batch;
  size_t bytes = 0;
  while (!waiting_.empty() && batch.size() < kBatchOperationsMax) {
    bytes += waiting_.front().bytes;
    if (!batch.empty() && bytes > kBatchBytesMax) break;
    batch.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return batch;
}

void Writer::submit_what_is_due() {
  if (delayed_.empty()) return;
  const SteadyTime now = Clock::system().now();
  while (!delayed_.empty() && (closing_ || delayed_.front().due <= now)) {
    waiting_.push_back(std::move(delayed_.front().operation));
    delayed_.pop_front();
  }
}

void Writer::commit(std::span<Operation> batch) {
  const SteadyTime begun_at = Clock::system().now();
  if (auto begun = begin_.execute(); !begun) {
    for (Operation& operation : batch) operation.failed(begun.error());
    return;
  }
  std::vector<Result<AfterCommit>> results;
  results.reserve(batch.size());
  const bool all_applied = apply(batch, results);
  Status committed;
  if (all_applied) failpoint("store.batch.applied");
  if (all_applied) committed = commit_.execute();
  if (all_applied && committed) {
    failpoint("store.batch.committed");
    committed_.observe(Clock::system().now() - begun_at);
    operations_committed_.add(batch.size());
    undo_log_.forget();
    for (size_t i = 0; i < batch.size(); ++i) {
      if (results[i]) {
        (*results[i])();
      } else {
        batch[i].failed(results[i].error());
      }
    }
    return;
  }
  undo_log_.undo();
  // It is lost as a whole. If the disk is full, its small operations may still find room one by one.
  if (database_.in_transaction()) {
    if (auto undone = database_.execute("ROLLBACK"); !undone) spdlog::warn("ROLLBACK: {}", undone.error().message);
  }
  if (batch.size() == 1) {
    batch.front().failed(all_applied ? committed.error() : results.back().error());
    return;
  }
  for (size_t i = 0; i < batch.size(); ++i) commit(batch.subspan(i, 1));
}

/// False if the transaction was lost on the way, by the operation whose error is the last of `results`.
bool Writer::apply(std::span<Operation> batch, std::vector<Result<AfterCommit>>& results) {
  for (Operation& operation : batch) {
    const int64_t rows_changed = database_.rows_changed();
    const size_t undos = undo_log_.size();
    results.push_back(operation.apply());
    const bool has_changed = database_.rows_changed() != rows_changed || undo_log_.size() != undos;
    if (!database_.in_transaction() || (!results.back() && has_changed)) {
      KCORAL_CHECK(!results.back().has_value());
      return false;
    }
  }
  return true;
}

}  // namespace kcoral::store
