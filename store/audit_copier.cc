#include "store/audit_copier.h"

#include <pthread.h>

#include <chrono>
#include <vector>

#include "base/failpoint.h"
#include "base/log.h"

namespace kcoral::store {
namespace {

using namespace std::chrono_literals;

// Each pass costs a sync. Nobody waits for it: a look-up reads the outbox too.
constexpr auto kLinger = 50ms;
constexpr auto kRetryDelay = 1s;
constexpr int kRowsMax = 512;

}  // namespace

AuditCopier::AuditCopier(Readers& readers, Content& content, Writer& writer, Outbox& outbox)
    : readers_(readers), content_(content), writer_(writer), outbox_(outbox), thread_([this] { run(); }) {
  ::pthread_setname_np(thread_.native_handle(), "store-audit");
}

AuditCopier::~AuditCopier() { close(); }

void AuditCopier::wake() {
  {
    const MutexLock lock(mutex_);
    if (awake_) return;
    awake_ = true;
  }
  wakeup_.notify_one();
}

Status AuditCopier::drain() {
  const MutexLock lock(mutex_);
  // A pass that is under way may have looked before.
  const uint64_t pass = passes_begun_ + 1;
  ++draining_;
  wakeup_.notify_one();
  while (passes_ended_ < pass) pass_ended_.wait(mutex_);
  --draining_;
  return last_pass_;
}

void AuditCopier::close() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  wakeup_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void AuditCopier::run() {
  auto delay = std::chrono::milliseconds(kLinger);
  for (;;) {
    bool last = false;
    {
      const MutexLock lock(mutex_);
      while (!awake_ && draining_ == 0 && !closing_) wakeup_.wait(mutex_);
      const SteadyTime deadline = Clock::system().now() + delay;
      while (draining_ == 0 && !closing_) {
        if (!wakeup_.wait_until(mutex_, deadline)) break;
      }
      awake_ = false;
      last = closing_;
      ++passes_begun_;
    }
    Status copied = copy_all();
    delay = kLinger;
    if (!copied) {
      spdlog::warn("audit records cannot be copied and stay in the outbox: {}", copied.error().message);
      delay = kRetryDelay;
    }
    {
      const MutexLock lock(mutex_);
      if (!copied) awake_ = true;
      last_pass_ = std::move(copied);
      ++passes_ended_;
    }
    pass_ended_.notify_all();
    if (last) return;
  }
}

Status AuditCopier::copy_all() {
  for (;;) {
    auto reader = readers_.lease();
    if (!reader) return fail(reader.error());
    auto rows = (*reader)->outbox_after(copied_through_, kRowsMax);
    if (!rows) return fail(rows.error());
    if (rows->empty()) return {};
    std::vector<StoredRecord> records;
    for (const Reader::OutboxRow& row : *rows) {
      for (StoredRecord& record : split_records(row.request_id, row.first_seq, row.records)) {
        records.push_back(std::move(record));
      }
    }
    if (auto stored = content_.put_records(records); !stored) return stored;
    failpoint("audit.copy.stored");
    if (auto synced = content_.sync(); !synced) return synced;
    failpoint("audit.copy.synced");
    copied_through_ = rows->back().id;
    remove_copied();
  }
}

void AuditCopier::remove_copied() {
  writer_.submit({.apply = [this, id = copied_through_]() -> Result<Writer::AfterCommit> {
                    if (auto removed = outbox_.remove_through(id); !removed) return fail(removed.error());
                    failpoint("audit.removal.applied");
                    return Writer::AfterCommit([] { failpoint("audit.removal.committed"); });
                  },
                  // The next removal takes these rows with it.
                  .failed = [](const Error& error) { spdlog::warn("the outbox: {}", error.message); },
                  .bytes = 0},
                 Writer::Urgency::kDelayed);
}

}  // namespace kcoral::store
