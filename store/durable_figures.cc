// The part of DurableStore that says what all of it has counted.
#include "store/durable_store.h"

namespace kcoral::store {

Figures DurableStore::figures() const {
  Figures figures;
  if (const auto oldest = queue_.oldest_submitted()) figures.oldest_queued_age = clock_.now() - *oldest;
  figures.admitted_synchronous = meters_.admitted_synchronous.value();
  figures.admitted_polled = meters_.admitted_polled.value();
  figures.refused_queue_full = meters_.refused_queue_full.value();
  figures.refused_client_limit = meters_.refused_client_limit.value();
  figures.requeued_lost = meters_.requeued_lost.value();
  figures.requeued_unstarted = meters_.requeued_unstarted.value();
  for (size_t state = 0; state < figures.ended.size(); ++state) figures.ended[state] = meters_.ended[state].value();
  figures.clients = meters_.clients.figures();
  figures.queued = meters_.queued.view();
  figures.ran = meters_.ran.view();
  figures.committed = writer_->committed();
  figures.operations_committed = writer_->operations_committed();
  blobs_->add_to(figures);
  figures.blobs_missing = meters_.blobs_missing.value();
  figures.answer_bytes = retention_->kept_bytes();
  figures.answers_pruned = retention_->answers_pruned();
  figures.requests_forgotten = retention_->requests_forgotten();
  return figures;
}

}  // namespace kcoral::store
