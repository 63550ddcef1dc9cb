// Moves committed audit records from the outbox to the audit in RocksDB.
//
// It promises: a record leaves the outbox only once its copy is durable, and records are copied in the order of their
// commits; so the copies of a request are always a gapless beginning of its audit, and the outbox has the rest. What
// cannot be copied (a full disk) stays where it is and is tried again.
//
// `wake`, `drain` and `close` may be called from any thread but its own.
#pragma once

#include <cstdint>
#include <thread>

#include "base/error.h"
#include "base/mutex.h"
#include "store/content.h"
#include "store/outbox.h"
#include "store/reader.h"
#include "store/writer.h"

namespace kcoral::store {

class AuditCopier {
 public:
  /// `outbox` is used on the writer's thread only.
  AuditCopier(Readers& readers, Content& content, Writer& writer, Outbox& outbox);
  ~AuditCopier();

  /// Something was committed to the outbox.
  void wake();

  /// Waits until all that was committed before the call is copied, or could not be.
  Status drain();

  /// Copies what is there, then ends the thread.
  void close();

 private:
  void run();
  Status copy_all();
  void remove_copied();

  Readers& readers_;
  Content& content_;
  Writer& writer_;
  Outbox& outbox_;
  int64_t copied_through_ = 0;  // the copier's thread only

  Mutex mutex_;
  ConditionVariable wakeup_;
  ConditionVariable pass_ended_;
  bool awake_ KCORAL_GUARDED_BY(mutex_) = true;  // at first there may be leftovers
  bool closing_ KCORAL_GUARDED_BY(mutex_) = false;
  int draining_ KCORAL_GUARDED_BY(mutex_) = 0;  // how many wait
  uint64_t passes_begun_ KCORAL_GUARDED_BY(mutex_) = 0;
  uint64_t passes_ended_ KCORAL_GUARDED_BY(mutex_) = 0;
  Status last_pass_ KCORAL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace kcoral::store
