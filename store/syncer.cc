#include "store/syncer.h"

#include <pthread.h>

namespace kcoral::store {

Syncer::Syncer(Content& content) : content_(content), thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "store-syncer");
}

Syncer::~Syncer() { close(); }

void Syncer::after_sync(Done done) {
  if (content_.is_synced()) {
    done({});
    return;
  }
  {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(done));
  }
  wakeup_.notify_one();
}

void Syncer::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  wakeup_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Syncer::run() {
  for (;;) {
    std::vector<Done> batch;
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !closing_) wakeup_.wait(mutex_);
      if (waiting_.empty()) return;
      batch.swap(waiting_);
    }
    const Status synced = content_.sync();
    for (Done& done : batch) done(synced);
  }
}

}  // namespace kcoral::store
