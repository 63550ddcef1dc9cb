// The part of DurableStore that answers questions about requests, at once or when they have ended.
#include <utility>

#include "store/durable_store.h"

namespace kcoral::store {

template <typename T>
void DurableStore::look_up(std::function<void(Result<T>)> done, std::function<Result<T>(Reader& reader)> find) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return done(fail(closed()));
  lookups_->post([this, done = std::move(done), find = std::move(find), token] {
    auto reader = readers_->lease();
    done(reader ? find(**reader) : fail(reader.error()));
  });
}

void DurableStore::status(const Uuid& request_id, std::function<void(Result<RequestStatus>)> done) {
  look_up<RequestStatus>(std::move(done), [this, request_id](Reader& reader) -> Result<RequestStatus> {
    auto row = reader.status(request_id);
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
  look_up<HistoryPage>(std::move(done), [this, query](Reader& reader) -> Result<HistoryPage> {
    auto rows = reader.history(query);
    if (!rows) return fail(rows.error());
    HistoryPage page{.requests = {}, .next = rows->next};
    for (Reader::StatusRow& row : rows->rows) page.requests.push_back(with_position(std::move(row)));
    return page;
  });
}

void DurableStore::program(const Uuid& request_id, std::function<void(Result<std::string>)> done) {
  look_up<std::string>(std::move(done), [request_id](Reader& reader) { return reader.program_text(request_id); });
}

void DurableStore::audit(const Uuid& request_id, std::function<void(Result<std::vector<std::string>>)> done) {
  look_up<std::vector<std::string>>(std::move(done),
                                    [this, request_id](Reader& reader) { return audit_records(reader, request_id); });
}

Result<std::vector<std::string>> DurableStore::audit_records(Reader& reader, const Uuid& request_id) {
  if (auto known = reader.state(request_id); !known) return fail(known.error());
  auto waiting = reader.outbox_of(request_id);
  if (!waiting) return fail(waiting.error());
  // After the outbox: what the copier moves in between is then seen twice rather than not at all.
  auto copied = content_->records(request_id);
  if (!copied) return fail(copied.error());
  std::vector<std::string> records;
  for (StoredRecord& record : *copied) records.push_back(std::move(record.text));
  for (const Reader::OutboxRow& row : *waiting) {
    for (StoredRecord& record : split_records(row.request_id, row.first_seq, row.records)) {
      if (record.seq == records.size()) records.push_back(std::move(record.text));
    }
  }
  return records;
}

void DurableStore::output(const Uuid& request_id, OutputStream stream, uint64_t offset,
                          std::function<void(Result<OutputPiece>)> done) {
  look_up<OutputPiece>(std::move(done), [this, request_id, stream, offset](Reader& reader) -> Result<OutputPiece> {
    OutputPiece piece;
    auto text = output_so_far(reader, request_id, stream, piece.is_complete);
    if (!text) return fail(text.error());
    if (offset > text->size()) {
      return fail(ErrorKind::kParse, "offset {} is beyond the output, which has {} bytes so far", offset, text->size());
    }
    piece.text = text->substr(offset);
    piece.next_offset = text->size();
    return piece;
  });
}

Result<std::string> DurableStore::output_so_far(Reader& reader, const Uuid& request_id, OutputStream stream,
                                                bool& is_complete) {
  // Before the row is looked at: what a run that ends in between has printed is found there.
  auto live = outputs_.read(request_id, stream);
  auto place = reader.output(request_id, stream);
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

// --- watching ---

Store::WatchId DurableStore::watch(const Uuid& request_id, std::function<void(Result<AnswerPtr>)> done) {
  return watch_until(request_id, std::move(done), *service_, [this, request_id]() -> Result<std::optional<AnswerPtr>> {
    auto answer = answer_if_ended(request_id);
    if (!answer) return fail(answer.error());
    return *answer ? std::optional(std::move(*answer)) : std::nullopt;
  });
}

Store::WatchId DurableStore::watch_end(const Uuid& request_id, std::function<void(Status)> done) {
  const auto told = [done = std::move(done)](const Result<AnswerPtr>& ended) {
    done(ended ? Status() : fail(ended.error()));
  };
  return watch_until(request_id, told, *lookups_, [this, request_id]() -> Result<std::optional<AnswerPtr>> {
    auto reader = readers_->lease();
    if (!reader) return fail(reader.error());
    auto state = (*reader)->state(request_id);
    if (!state) return fail(state.error());
    return schema::is_terminal(*state) ? std::optional(AnswerPtr()) : std::nullopt;
  });
}

Store::WatchId DurableStore::watch_until(const Uuid& request_id, Watches::Done done, ThreadPool& pool,
                                         std::function<Result<std::optional<AnswerPtr>>()> look) {
  InFlight::Token token = in_flight_.enter();
  if (!token) {
    done(fail(closed()));
    return 0;
  }
  // Registered before the row is looked at: an end that the look misses fires the watch, and only one of the two does.
  const WatchId id = watches_.add(request_id, std::move(done));
  pool.post([this, id, look = std::move(look), token] {
    auto ended = look();
    if (!ended) return watches_.fire(id, fail(ended.error()));
    if (*ended) watches_.fire(id, std::move(**ended));
  });
  return id;
}

void DurableStore::unwatch(WatchId id) { watches_.remove(id); }

Result<Store::AnswerPtr> DurableStore::answer_if_ended(const Uuid& request_id) {
  auto reader = readers_->lease();
  if (!reader) return fail(reader.error());
  auto standing = (*reader)->standing(request_id);
  if (!standing) return fail(standing.error());
  if (!*standing) return fail(ErrorKind::kNotFound, "request {} is not known", request_id.str());
  if (!schema::is_terminal((*standing)->state)) return AnswerPtr();
  if (!(*standing)->answer) return fail(pruned(request_id));
  const KeptAnswer& answer = *(*standing)->answer;
  if (const auto* small = std::get_if<SmallAnswer>(&answer)) return decode_answer(request_id, *small);
  return load_answer(*content_, request_id, std::get<ContentId>(answer));
}

}  // namespace kcoral::store
