#include "gateway/history.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kcoral::gateway {
namespace {

using namespace std::chrono_literals;

TEST(HistoryQuery, AsksForTheNewestUnlessItSaysMore) {
  const auto query = parse_history_query("");
  ASSERT_TRUE(query);
  EXPECT_FALSE(query->state || query->label || query->client || query->since || query->until || query->after);
  EXPECT_EQ(query->count_max, limits::kHistoryPageDefault);
}

TEST(HistoryQuery, ReadsEveryParameter) {
  const auto query = parse_history_query(
      "state=timed_out&label=run%3Da%3Db%20c&client=al%C3%AFce&since=2023-11-14T22:13:20Z"
      "&until=2023-11-15T03:43:20.5%2B05:30&limit=1000&cursor=12.34");
  ASSERT_TRUE(query) << query.error().message;
  EXPECT_EQ(query->state, schema::State::kTimedOut);
  EXPECT_EQ(query->label, (std::pair<std::string, std::optional<std::string>>("run", "a=b c")));
  EXPECT_EQ(query->client, "al\u00efce");
  EXPECT_EQ(query->since, WallTime(1'700'000'000s));
  EXPECT_EQ(query->until, WallTime(1'700'000'000'500ms));
  EXPECT_EQ(query->count_max, 1000u);
  EXPECT_EQ(query->after, (store::HistoryCursor{12, 34}));
}

TEST(HistoryQuery, ALabelMayHaveAnyValueOrAnEmptyOne) {
  using Label = std::pair<std::string, std::optional<std::string>>;
  EXPECT_EQ(parse_history_query("label=run")->label, Label("run", std::nullopt));
  EXPECT_EQ(parse_history_query("label=run=")->label, Label("run", ""));
}

TEST(HistoryQuery, ThePlusOfAnOffsetNeedsNoEscape) {
  EXPECT_EQ(parse_history_query("since=2023-11-15T03:43:20+05:30")->since, WallTime(1'700'000'000s));
}

TEST(HistoryQuery, SaysWhatIsAccepted) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"state=done", "state must be one of queued, assigned, running, completed"},
           {"state=", "state must be one of"},
           {"label=", "label must be name or name=value"},
           {"label==x", "label must be name or name=value"},
           {"since=yesterday", "since must be a time as in RFC 3339"},
           {"until=2023-11-14", "until must be a time as in RFC 3339"},
           {"limit=0", "limit must be a whole number from 1 to 1000"},
           {"limit=1001", "limit must be"},
           {"limit=-1", "limit must be"},
           {"limit=1.0", "limit must be"},
           {"limit=", "limit must be"},
           {"limit=99999999999999999999", "limit must be"},
           {"cursor=x", "cursor must be the next_cursor of an earlier answer"},
           {"cursor=1", "cursor must be"},
           {"cursor=1.2.3", "cursor must be"},
           {"page=2", "unknown query parameter \"page\": this path takes state, label, client, since"},
           {"limit=1&limit=2", "sent twice"}}) {
    const auto query = parse_history_query(text);
    ASSERT_FALSE(query) << text;
    EXPECT_EQ(query.error().kind, ErrorKind::kParse);
    EXPECT_NE(query.error().message.find(part), std::string::npos) << query.error().message;
  }
}

TEST(HistoryDocument, HasStatusDocumentsAndTheWayOn) {
  store::HistoryPage page;
  EXPECT_EQ(history_document(page), R"({"requests":[],"next_cursor":null})");
  for (int i = 0; i < 2; ++i) page.requests.emplace_back().request_id = Uuid::random();
  page.next = store::HistoryCursor{1'700'000'000'000'000, -3};
  const auto document = nlohmann::json::parse(history_document(page));
  ASSERT_EQ(document["requests"].size(), 2u);
  EXPECT_EQ(document["requests"][1]["request_id"], page.requests[1].request_id.str());
  const auto next = parse_history_query("cursor=" + document["next_cursor"].get<std::string>());
  ASSERT_TRUE(next);
  EXPECT_EQ(next->after, page.next);
}

}  // namespace
}  // namespace kcoral::gateway
