// Who waits for the end of which request.
//
// It promises: each watch's callback runs exactly once, unless it is removed before; when `remove` returns, the
// callback will not run any more and is not running (a callback may remove its own watch, which does not wait for
// itself). Thread-safe; callbacks run on the thread that fires, without a lock held.
#pragma once

#include <functional>
#include <map>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/uuid.h"
#include "store/store.h"

namespace kcoral::store {

class Watches {
 public:
  using Id = Store::WatchId;
  using Done = std::function<void(Result<Store::AnswerPtr>)>;

  Id add(const Uuid& request_id, Done done);
  void remove(Id id);

  /// One watch. Nothing happens if it has fired or was removed already.
  void fire(Id id, const Result<Store::AnswerPtr>& answer) KCORAL_EXCLUDES(mutex_);
  /// All watches of a request, in the order in which they were added.
  void fire_all(const Uuid& request_id, const Result<Store::AnswerPtr>& answer);
  /// All that are left, whatever they wait for.
  void fire_rest(const Result<Store::AnswerPtr>& answer);

 private:
  struct Watch {
    Uuid request_id;
    Done done;
    std::thread::id firing;  // the default id while it waits
  };

  Mutex mutex_;
  ConditionVariable fired_;
  std::map<Id, Watch> watches_ KCORAL_GUARDED_BY(mutex_);
  std::unordered_map<Uuid, std::vector<Id>> by_request_ KCORAL_GUARDED_BY(mutex_);  // only those that wait
  Id next_id_ KCORAL_GUARDED_BY(mutex_) = 1;
};

}  // namespace kcoral::store
