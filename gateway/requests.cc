#include "gateway/requests.h"

#include "gateway/history.h"
#include "gateway/lookup_exchange.h"
#include "gateway/numbers.h"
#include "gateway/outcome.h"
#include "gateway/query.h"
#include "gateway/status.h"
#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

Result<Uuid> parse_id(std::string_view text) {
  if (const auto id = Uuid::parse(text)) return *id;
  return fail(ErrorKind::kNotFound, "there is no such request: a request's id is a UUID in lowercase");
}

Result<std::chrono::microseconds> parse_wait(const Query& query) {
  const auto text = query.value("wait");
  if (!text) return std::chrono::microseconds(0);
  const auto seconds = finite_number(*text);
  constexpr std::chrono::duration<double> kMax = limits::kLongPollMax;
  if (!seconds || *seconds < 0 || *seconds > kMax.count()) {
    return fail(ErrorKind::kParse, "wait must be a number of seconds from 0 to {}", kMax.count());
  }
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::duration<double>(*seconds));
}

Result<store::OutputStream> parse_stream(const Query& query) {
  const auto text = query.value("stream").value_or("stdout");
  if (text == "stdout") return store::OutputStream::kStdout;
  if (text == "stderr") return store::OutputStream::kStderr;
  return fail(ErrorKind::kParse, "stream must be stdout or stderr");
}

Result<uint64_t> parse_offset(const Query& query) {
  if (const auto offset = whole_number<uint64_t>(query.value("offset").value_or("0"))) return *offset;
  return fail(ErrorKind::kParse, "offset must be a whole number of bytes, 0 or the next offset of an earlier answer");
}

Response render_history(const Uuid& call_id, const store::HistoryPage& page) {
  return text_response(call_id, history_document(page));
}

Response render_program(const Uuid& call_id, std::string program) { return text_response(call_id, std::move(program)); }

Response render_audit(const Uuid& call_id, const Uuid& request_id, const std::vector<std::string>& records) {
  return text_response(
      call_id, fmt::format(R"({{"request_id":"{}","records":[{}]}})", request_id.str(), fmt::join(records, ",")));
}

Response render_output(const Uuid& call_id, store::OutputPiece piece) {
  Response response = text_response(call_id, std::move(piece.text), "text/plain; charset=utf-8");
  response.headers.push_back({"X-KCoral-Next-Offset", std::to_string(piece.next_offset)});
  response.headers.push_back({"X-KCoral-Complete", piece.is_complete ? "true" : "false"});
  return response;
}

}  // namespace

RequestService::Opened RequestService::open(const Routes::Match& match, const Call& call) {
  if (match.endpoint == Endpoint::kHistory) return open_history(call);
  const auto request_id = parse_id(match.parameters.at(0));
  if (!request_id) return fail(request_id.error());
  if (match.endpoint == Endpoint::kStatus) return open_status(*request_id, call);
  if (match.endpoint == Endpoint::kOutput) return open_output(*request_id, call);
  if (auto none = Query::parse(call.head.query, {}); !none) return fail(none.error());
  if (match.endpoint == Endpoint::kArtifact) return open_artifact(*request_id, match.parameters.at(1), call);
  return open_plain(match.endpoint, *request_id, call);
}

RequestService::Opened RequestService::open_history(const Call& call) {
  auto query = parse_history_query(call.head.query);
  if (!query) return fail(query.error());
  const auto ask = [query = *std::move(query)](store::Store& store, auto done) {
    store.history(query, std::move(done));
  };
  return make<LookupExchange<store::HistoryPage>>(call, ask, render_history);
}

RequestService::Opened RequestService::open_status(const Uuid& request_id, const Call& call) {
  const auto query = Query::parse(call.head.query, {"wait"});
  if (!query) return fail(query.error());
  const auto wait = parse_wait(*query);
  if (!wait) return fail(wait.error());
  return std::make_shared<StatusExchange>(store_, waiting_, abandonment_, call, request_id, *wait);
}

RequestService::Opened RequestService::open_output(const Uuid& request_id, const Call& call) {
  const auto query = Query::parse(call.head.query, {"stream", "offset"});
  if (!query) return fail(query.error());
  const auto stream = parse_stream(*query);
  if (!stream) return fail(stream.error());
  const auto offset = parse_offset(*query);
  if (!offset) return fail(offset.error());
  const auto ask = [request_id, stream = *stream, offset = *offset](store::Store& store, auto done) {
    store.output(request_id, stream, offset, std::move(done));
  };
  return make<LookupExchange<store::OutputPiece>>(call, ask, render_output);
}

RequestService::Opened RequestService::open_artifact(const Uuid& request_id, std::string_view encoded_key,
                                                     const Call& call) {
  auto key = percent_decode(encoded_key);
  if (!key) return fail(ErrorKind::kNotFound, "nothing was returned under a key that is not percent-encoded UTF-8");
  const auto render = [key = *std::move(key)](const Uuid& call_id, const store::RequestStatus& status, auto answer) {
    return render_artifact(call_id, status, std::move(answer), key);
  };
  return make<OutcomeExchange>(call, request_id, render);
}

RequestService::Opened RequestService::open_plain(Endpoint endpoint, const Uuid& request_id, const Call& call) {
  switch (endpoint) {
    case Endpoint::kCancel:
      return make<CancelExchange>(call, request_id);
    case Endpoint::kResult:
      return make<OutcomeExchange>(call, request_id, render_result);
    case Endpoint::kProgram:
      return make<LookupExchange<std::string>>(
          call, [request_id](store::Store& store, auto done) { store.program(request_id, std::move(done)); },
          render_program);
    default:
      KCORAL_CHECK(endpoint == Endpoint::kAudit);
      return make<LookupExchange<std::vector<std::string>>>(
          call, [request_id](store::Store& store, auto done) { store.audit(request_id, std::move(done)); },
          [request_id](const Uuid& call_id, const std::vector<std::string>& records) {
            return render_audit(call_id, request_id, records);
          });
  }
}

}  // namespace kcoral::gateway
