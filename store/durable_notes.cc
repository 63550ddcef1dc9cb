// The part of DurableStore that writes down what runs say of themselves, for which nobody waits: with the run's end, if
// that comes soon enough, or within limits::kRecordsDelayStore.
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/audit_events.h"
#include "store/durable_store.h"

namespace kcoral::store {

using AfterCommit = Writer::AfterCommit;

void DurableStore::mark_running(const Fence& fence, int pid) {
  note(fence, {.pid = pid,
               .gpu_ids = std::nullopt,
               .records = {{clock_.wall_now(), audit_events::running(pid, fence.attempt)}}});
}

void DurableStore::note_gpus(const Fence& fence, std::vector<int> gpu_ids) {
  note(fence, {.pid = std::nullopt, .gpu_ids = std::move(gpu_ids), .records = {}});
}

void DurableStore::append_audit(const Fence& fence, std::vector<AuditRecord> records) {
  note(fence, {.pid = std::nullopt, .gpu_ids = std::nullopt, .records = std::move(records)});
}

void DurableStore::note(const Fence& fence, RunNotes notes) {
  if (InFlight::Token token = in_flight_.enter(); token && notes_.add(fence, std::move(notes))) write_notes_soon();
}

void DurableStore::keep_notes(PendingNotes::ByRun taken) {
  if (notes_.put_back(std::move(taken))) write_notes_soon();
}

void DurableStore::write_notes_soon() {
  InFlight::Token token = in_flight_.enter();
  if (!token) return;  // what the next start does not find is a gap in the audit, and it says so
  const auto taken = std::make_shared<PendingNotes::ByRun>();
  // How much it writes is known only then: as much as runs say in that time.
  writer_->submit({.apply = [this, taken]() -> Result<AfterCommit> {
                     failpoint("store.notes.begun");
                     notes_.take_all(*taken);
                     if (auto written = write_notes(*taken); !written) return fail(written.error());
                     failpoint("store.notes.applied");
                     return AfterCommit([this] {
                       failpoint("store.notes.committed");
                       notes_wait_for_room_ = false;
                     });
                   },
                   .failed =
                       [this, taken, token](const Error& error) {
                         if (!notes_wait_for_room_) {
                           spdlog::warn("what runs say of themselves cannot be written down yet: {}", error.message);
                         }
                         notes_wait_for_room_ = true;
                         keep_notes(std::move(*taken));
                       },
                   .bytes = 0},
                  Writer::Urgency::kDelayed);
}

Writer::Operation DurableStore::after_notes(const Uuid& request_id, Writer::Operation operation) {
  const auto taken = std::make_shared<PendingNotes::ByRun>();
  return {.apply = [this, request_id, taken, apply = std::move(operation.apply)]() -> Result<AfterCommit> {
            notes_.take(request_id, *taken);
            if (auto written = write_notes(*taken); !written) return fail(written.error());
            return apply();
          },
          .failed =
              [this, taken, failed = std::move(operation.failed)](const Error& error) {
                keep_notes(std::move(*taken));
                failed(error);
              },
          .bytes = operation.bytes};
}

Status DurableStore::write_notes(const PendingNotes::ByRun& taken) {
  for (const auto& [fence, notes] : taken) {
    auto noted = requests_->note(fence, notes);
    if (noted) continue;
    const ErrorKind kind = noted.error().kind;
    if (kind != ErrorKind::kConflict && kind != ErrorKind::kNotFound) return noted;
    // Its words crossed with the decision that the attempt is over.
    spdlog::debug("not noted: {}", noted.error().message);
  }
  return {};
}

}  // namespace kcoral::store
