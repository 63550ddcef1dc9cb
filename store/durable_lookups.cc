// The part of DurableStore that answers questions about requests.
#include <utility>

#include "store/durable_store.h"

namespace kcoral::store {

template <typename T>
void DurableStore::look_up(std::function<void(Result<T>)> done, std::function<Result<T>()> find) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return done(fail(closed()));
  lookups_->post([done = std::move(done), find = std::move(find), token] { done(find()); });
}

void DurableStore::status(const Uuid& request_id, std::function<void(Result<RequestStatus>)> done) {
  look_up<RequestStatus>(std::move(done), [this, request_id]() -> Result<RequestStatus> {
    auto reader = readers_->lease();
    if (!reader) return fail(reader.error());
    return (*reader)->status(request_id);
  });
}

void DurableStore::history(const HistoryQuery&, std::function<void(Result<HistoryPage>)> done) {
  done(fail(ErrorKind::kEngine, "not yet"));
}

void DurableStore::program(const Uuid& request_id, std::function<void(Result<std::string>)> done) {
  look_up<std::string>(std::move(done), [this, request_id]() -> Result<std::string> {
    auto reader = readers_->lease();
    if (!reader) return fail(reader.error());
    return (*reader)->program_text(request_id);
  });
}

void DurableStore::audit(const Uuid& request_id, std::function<void(Result<std::vector<std::string>>)> done) {
  look_up<std::vector<std::string>>(std::move(done), [this, request_id] { return audit_records(request_id); });
}

Result<std::vector<std::string>> DurableStore::audit_records(const Uuid& request_id) {
  std::vector<Reader::OutboxRow> waiting;
  {
    auto reader = readers_->lease();
    if (!reader) return fail(reader.error());
    auto standing = (*reader)->standing(request_id);
    if (!standing) return fail(standing.error());
    if (!*standing) return fail(ErrorKind::kNotFound, "request {} is not known", request_id.str());
    auto rows = (*reader)->outbox_of(request_id);
    if (!rows) return fail(rows.error());
    waiting = std::move(*rows);
  }
  // After the outbox: what the copier moves in between is then seen twice rather than not at all.
  auto copied = content_->records(request_id);
  if (!copied) return fail(copied.error());
  std::vector<std::string> records;
  for (StoredRecord& record : *copied) records.push_back(std::move(record.text));
  for (const Reader::OutboxRow& row : waiting) {
    for (StoredRecord& record : split_records(row.request_id, row.first_seq, row.records)) {
      if (record.seq == records.size()) records.push_back(std::move(record.text));
    }
  }
  return records;
}

void DurableStore::output(const Uuid&, OutputStream, uint64_t, std::function<void(Result<OutputPiece>)> done) {
  done(fail(ErrorKind::kEngine, "not yet"));
}

}  // namespace kcoral::store
