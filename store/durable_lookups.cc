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
    auto row = (*reader)->status(request_id);
    if (!row) return fail(row.error());
    return with_position(std::move(*row));
  });
}

RequestStatus DurableStore::with_position(Reader::StatusRow row) const {
  if (row.status.state != schema::State::kQueued) return std::move(row.status);
  const uint64_t position = queue_.position(row.item);
  if (position <= limits::kQueuePositionMax) row.status.queue_position = position;
  return std::move(row.status);
}

void DurableStore::history(const HistoryQuery& query, std::function<void(Result<HistoryPage>)> done) {
  look_up<HistoryPage>(std::move(done), [this, query]() -> Result<HistoryPage> {
    auto reader = readers_->lease();
    if (!reader) return fail(reader.error());
    auto rows = (*reader)->history(query);
    if (!rows) return fail(rows.error());
    HistoryPage page{.requests = {}, .next = rows->next};
    for (Reader::StatusRow& row : rows->rows) page.requests.push_back(with_position(std::move(row)));
    return page;
  });
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

void DurableStore::output(const Uuid& request_id, OutputStream stream, uint64_t offset,
                          std::function<void(Result<OutputPiece>)> done) {
  look_up<OutputPiece>(std::move(done), [this, request_id, stream, offset]() -> Result<OutputPiece> {
    OutputPiece piece;
    auto text = output_so_far(request_id, stream, piece.is_complete);
    if (!text) return fail(text.error());
    if (offset > text->size()) {
      return fail(ErrorKind::kParse, "offset {} is beyond the output, which has {} bytes so far", offset, text->size());
    }
    piece.text = text->substr(offset);
    piece.next_offset = text->size();
    return piece;
  });
}

Result<std::string> DurableStore::output_so_far(const Uuid& request_id, OutputStream stream, bool& is_complete) {
  // Before the row is looked at: what a run that ends in between has printed is found there.
  auto live = outputs_.read(request_id, stream);
  auto reader = readers_->lease();
  if (!reader) return fail(reader.error());
  auto place = (*reader)->output(request_id, stream);
  if (!place) return fail(place.error());
  is_complete = schema::is_terminal(place->state);
  if (!is_complete) return live;
  if (place->text) return std::move(*place->text);
  if (!place->answer) return fail(pruned(request_id));
  const std::string_view member = stream == OutputStream::kStdout ? "stdout" : "stderr";
  if (const auto* small = std::get_if<SmallAnswer>(&*place->answer)) {
    auto answer = decode_answer(request_id, *small);
    if (!answer) return fail(answer.error());
    return schema::output_in((*answer)->document, member);
  }
  auto document = load_document(*content_, request_id, std::get<ContentId>(*place->answer));
  if (!document) return fail(document.error());
  return schema::output_in(*document, member);
}

}  // namespace kcoral::store
