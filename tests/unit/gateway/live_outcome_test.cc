// What requests have ended with: stored answers, returned values, the wait for the end, cancellation.
#include <cstdlib>
#include <fstream>

#include "tests/unit/gateway/live_requests.h"

namespace kcoral::gateway {
namespace {

std::string state_of(const RawAnswer& answer) {
  return nlohmann::json::parse(answer.body, nullptr, false).value("state", "no state: " + answer.body);
}

class LiveOutcome : public LiveRequests {
 protected:
  /// Ends the request with an answer whose parts are "one" and "two2".
  FakeStore::AnswerPtr end(std::string_view results) {
    const auto memory = *SealedMemory::copy_of("onetwo2");
    auto answer = std::make_shared<const schema::Answer>(
        schema::make_result_answer(fmt::format(R"({{"status":"COMPLETED","results":{{{}}}}})", results),
                                   {{{memory, 0, 3}, {}}, {{memory, 3, 4}, {}}}));
    live.store.answer(id, answer);
    return answer;
  }
};

TEST_F(LiveOutcome, TheResultIsWhatAWaitingClientReads) {
  RawClient waiting = live.client();
  waiting.send(execute_program(id_header(id)));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  end(R"("b":{"type":"bytes","part":"return:0","sha256":""})");
  const auto given = waiting.read_answer();
  ASSERT_TRUE(given);
  for (int i = 0; i < 2; ++i) {
    const auto answer = ask(get(path() + "/result"));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.header("content-type"), given->header("content-type"));
    EXPECT_EQ(answer.body, given->body);
  }
}

TEST_F(LiveOutcome, AResultKeepsItsStatusCode) {
  submit();
  const auto error = std::make_shared<const schema::Answer>(
      schema::make_error_answer(id, {ErrorKind::kTimeout, "the deadline passed"}));
  live.store.answer(id, error, schema::State::kTimedOut);
  const auto answer = ask(get(path() + "/result"));
  EXPECT_EQ(answer.status, 504);
  EXPECT_EQ(answer.body, error->document);
}

TEST_F(LiveOutcome, WhatHasNotEndedHasNoResult) {
  submit();
  for (const char* below : {"/result", "/artifacts/k"}) {
    const auto answer = ask(get(path() + below));
    EXPECT_EQ(answer.status, 409);
    EXPECT_EQ(answer.header("content-type"), "application/json");
    EXPECT_EQ(state_of(answer), "queued");
  }
  EXPECT_EQ(live.store.watching(), 0u);
}

TEST_F(LiveOutcome, WhatWasPrunedIsGone) {
  submit();
  end("");
  EXPECT_EQ(ask(get(path() + "/result")).status, 200);
  live.store.prune(id);
  for (const char* below : {"/result", "/artifacts/k"}) {
    const auto answer = ask(get(path() + below));
    EXPECT_EQ(answer.status, 410);
    EXPECT_EQ(error_kind(answer), "gone");
  }
  EXPECT_EQ(ask(get(path())).status, 200);
}

TEST_F(LiveOutcome, ArtifactsAreRawBytesOrJson) {
  submit();
  end(R"("b":{"type":"bytes","part":"return:0","sha256":""},)"
      R"("a/b \u00e4":{"type":"file","size":4,"part":"return:1","sha256":""},)"
      R"("n":{"type":"integer","value":12345678901234567890123}, "+":{"type":"null"})");
  auto answer = ask(get(path() + "/artifacts/b"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("content-type"), "application/octet-stream");
  EXPECT_EQ(answer.body, "one");
  answer = ask(get(path() + "/artifacts/a%2Fb%20%C3%A4"));
  EXPECT_EQ(answer.header("content-type"), "application/octet-stream");
  EXPECT_EQ(answer.body, "two2");
  answer = ask(get(path() + "/artifacts/n"));
  EXPECT_EQ(answer.header("content-type"), "application/json");
  EXPECT_EQ(answer.body, R"({"type":"integer","value":12345678901234567890123})");
  EXPECT_EQ(ask(get(path() + "/artifacts/+")).body, R"({"type":"null"})") << "a path's plus is a plus";
  for (const char* key : {"c", "results", "%ff", "%"}) {
    answer = ask(get(path() + "/artifacts/" + key));
    EXPECT_EQ(answer.status, 404) << key;
    EXPECT_EQ(error_kind(answer), "not_found");
  }
}

TEST_F(LiveOutcome, AFolderIsATar) {
  submit();
  end(R"("d":{"type":"folder","files":{"a/one":{"type":"file","size":3,"part":"return:0","sha256":""}},)"
      R"("directories":["a","empty"]})");
  live.store.wait_until([&] { return state_of(ask(get(path()))) == "completed"; });
  live.store.change(
      id, [](store::RequestStatus& status) { status.finished_at = WallTime(std::chrono::seconds(1'000'000'000)); });
  const auto answer = ask(get(path() + "/artifacts/d"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("content-type"), "application/x-tar");
  std::string name = "/tmp/kcoral-folder-XXXXXX";
  const UniqueFd fd(::mkstemp(name.data()));
  std::ofstream(name, std::ios::binary) << answer.body;
  FILE* listing = ::popen(fmt::format("TZ=UTC tar -tvf {} --full-time && tar -xOf {} a/one", name, name).c_str(), "r");
  ASSERT_NE(listing, nullptr);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), listing));
  EXPECT_EQ(::pclose(listing), 0);
  ::unlink(name.c_str());
  EXPECT_NE(text.find("2001-09-09 01:46:40 a/\n"), std::string::npos) << text;
  EXPECT_NE(text.find("2001-09-09 01:46:40 empty/\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("a/one\none")) << text;
}

TEST_F(LiveOutcome, ALongPollEndsWithTheRequest) {
  submit();
  client.send(get(path() + "?wait=60"));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  end("");
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(state_of(*answer), "completed");
  EXPECT_EQ(state_of(ask(get(path() + "?wait=60"))), "completed") << "at once";
  EXPECT_EQ(live.store.watching(), 0u);
}

TEST_F(LiveOutcome, NoWaitIsNoLongPoll) {
  submit();
  EXPECT_EQ(state_of(ask(get(path() + "?wait=0"))), "queued");
  EXPECT_EQ(state_of(ask(get(path() + "?wait=0.001"))), "queued") << "a fraction of a second is a wait, and passes";
}

TEST_F(LiveOutcome, APollingClientThatGoesAwayIsForgotten) {
  submit();
  client.send(get(path() + "?wait=60"));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  client.reset();
  live.store.wait_until([&] { return live.store.watching() == 0; });
}

TEST_F(LiveOutcome, AQueuedRequestIsCancelled) {
  submit();
  for (int i = 0; i < 2; ++i) {
    const auto answer = ask(remove(path()));
    EXPECT_EQ(answer.status, 200) << "also when it is cancelled already";
    EXPECT_EQ(state_of(answer), "cancelled");
  }
  EXPECT_EQ(live.store.cancellations().at(0), FakeStore::Cancellation(id, store::CancelBy::kClient));
}

TEST_F(LiveOutcome, ARunningRequestIsCancelledWhenItHasEnded) {
  submit();
  live.store.start(id);
  client.send(remove(path()));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  live.store.answer(id, FakeStore::document("{}"), schema::State::kCancelled);
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(state_of(*answer), "cancelled");
}

TEST_F(LiveOutcome, WhatEndsOtherwiseIsAConflict) {
  submit();
  live.store.start(id);
  client.send(remove(path()));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  end("");
  const auto late = client.read_answer();
  ASSERT_TRUE(late);
  for (const RawAnswer& answer : {*late, ask(remove(path()))}) {
    EXPECT_EQ(answer.status, 409);
    EXPECT_EQ(error_kind(answer), "conflict");
    EXPECT_NE(answer.body.find("completed"), std::string::npos) << "it says how it ended";
  }
}

TEST_F(LiveOutcome, ClientsThatWaitAreReleasedWhenTheServerStops) {
  submit();
  live.store.start(id);
  RawClient cancelling = live.client();
  client.send(get(path() + "?wait=60"));
  cancelling.send(remove(path()));
  live.store.wait_until([&] { return live.store.watching() == 2; });
  live.gateway->release_waiting();
  for (RawClient* waiting : {&client, &cancelling}) {
    const auto answer = waiting->read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 503);
    EXPECT_EQ(error_kind(*answer), "busy");
    EXPECT_NE(answer->header("retry-after"), "");
  }
  EXPECT_EQ(live.store.watching(), 0u);
  EXPECT_EQ(state_of(ask(get(path() + "?wait=60"))), "running") << "who comes now does not wait";
}

}  // namespace
}  // namespace kcoral::gateway
