#include "gateway/history.h"

#include <algorithm>

#include "gateway/numbers.h"
#include "gateway/query.h"
#include "gateway/status_document.h"
#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

std::string text_of(const store::HistoryCursor& cursor) {
  return fmt::format("{}.{}", cursor.submitted_us, cursor.seq);
}

Result<store::HistoryCursor> parse_cursor(std::string_view text) {
  const size_t dot = std::min(text.find('.'), text.size());
  const auto submitted_us = whole_number<int64_t>(text.substr(0, dot));
  const auto seq = whole_number<int64_t>(text.substr(std::min(dot + 1, text.size())));
  if (!submitted_us || !seq) return fail(ErrorKind::kParse, "cursor must be the next_cursor of an earlier answer");
  return store::HistoryCursor{*submitted_us, *seq};
}

Result<schema::State> parse_state(std::string_view text) {
  if (const auto state = schema::state_from(text)) return *state;
  std::string names;
  for (int i = 0; i < schema::kStateCount; ++i) {
    if (i > 0) names += ", ";
    names += schema::wire_name(static_cast<schema::State>(i));
  }
  return fail(ErrorKind::kParse, "state must be one of {}", names);
}

Result<WallTime> parse_time(std::string_view name, std::string_view text) {
  // The '+' of an offset means a space in a query, and many send it as it is.
  std::string with_plus(text);
  std::replace(with_plus.begin(), with_plus.end(), ' ', '+');
  if (const auto time = parse_rfc3339(with_plus)) return *time;
  return fail(ErrorKind::kParse,
              "{} must be a time as in RFC 3339, such as 2026-11-29T19:24:56Z or "
              "2026-11-29T20:24:56+01:00",
              name);
}

Result<std::pair<std::string, std::optional<std::string>>> parse_label(std::string_view text) {
  const size_t equals = text.find('=');
  if (text.empty() || equals == 0) return fail(ErrorKind::kParse, "label must be name or name=value");
  if (equals == std::string_view::npos) return std::pair(std::string(text), std::optional<std::string>());
  return std::pair(std::string(text.substr(0, equals)), std::optional(std::string(text.substr(equals + 1))));
}

Result<size_t> parse_limit(std::string_view text) {
  const auto limit = whole_number<size_t>(text);
  if (limit && *limit >= 1 && *limit <= limits::kHistoryPageMax) return *limit;
  return fail(ErrorKind::kParse, "limit must be a whole number from 1 to {}", limits::kHistoryPageMax);
}

/// Parses the parameter `name`, if it is there, into `target`.
template <typename Target, typename Parse>
Status take(const Query& query, std::string_view name, Target& target, Parse parse) {
  const auto text = query.value(name);
  if (!text) return {};
  auto parsed = parse(*text);
  if (!parsed) return fail(parsed.error());
  target = std::move(*parsed);
  return {};
}

}  // namespace

Result<store::HistoryQuery> parse_history_query(std::string_view text) {
  const auto query = Query::parse(text, {"state", "label", "client", "since", "until", "limit", "cursor"});
  if (!query) return fail(query.error());
  store::HistoryQuery wanted;
  wanted.count_max = limits::kHistoryPageDefault;
  if (const auto client = query->value("client")) wanted.client = *client;
  const auto time = [](std::string_view name) {
    return [name](std::string_view value) { return parse_time(name, value); };
  };
  for (const Status& taken :
       {take(*query, "state", wanted.state, parse_state), take(*query, "label", wanted.label, parse_label),
        take(*query, "since", wanted.since, time("since")), take(*query, "until", wanted.until, time("until")),
        take(*query, "limit", wanted.count_max, parse_limit), take(*query, "cursor", wanted.after, parse_cursor)}) {
    if (!taken) return fail(taken.error());
  }
  return wanted;
}

std::string history_document(const store::HistoryPage& page) {
  std::string document = "{\"requests\":[";
  for (const store::RequestStatus& status : page.requests) {
    if (&status != &page.requests.front()) document += ',';
    document += status_document(status);
  }
  document += page.next ? fmt::format("],\"next_cursor\":\"{}\"}}", text_of(*page.next)) : "],\"next_cursor\":null}";
  return document;
}

}  // namespace kcoral::gateway
