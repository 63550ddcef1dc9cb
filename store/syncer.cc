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
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(done));
  }
  wakeup_.notify_one();
}

void Syncer::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wakeup_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Syncer::run() {
  for (;;) {
    std::vector<Done> batch;
    {
      std::unique_lock lock(mutex_);
      wakeup_.wait(lock, [this] { return !waiting_.empty() || closing_; });
      if (waiting_.empty()) return;
      batch.swap(waiting_);
    }
    const Status synced = content_.sync();
    for (Done& done : batch) done(synced);
  }
}

}  // namespace kcoral::store
