// Makes content durable for many at once: whoever waits while one sync is under way shares the next.
//
// It promises: `done` runs after everything that was written to the content before `after_sync` was called is on disk,
// or with the error that kept it from it. Thread-safe; `done` runs on the syncer's thread, or at once on the caller's
// when nothing is left to sync.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "store/content.h"

namespace kcoral::store {

class Syncer {
 public:
  using Done = std::function<void(const Status&)>;

  explicit Syncer(Content& content);
  ~Syncer();

  void after_sync(Done done);

  /// Serves whoever waits, then ends the thread. Requires: nobody calls `after_sync` any more.
  void close();

 private:
  void run();

  Content& content_;
  Mutex mutex_;
  ConditionVariable wakeup_;
  std::vector<Done> waiting_ KCORAL_GUARDED_BY(mutex_);
  bool closing_ KCORAL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kcoral::store
