// POST /requests and what can be asked about a request afterwards.
#include "tests/unit/gateway/live_requests.h"

namespace kcoral::gateway {
namespace {

TEST_F(LiveRequests, AProgramIsEnqueuedAndAnsweredAtOnce) {
  client.send(enqueue_program(id_header(id) + "X-KCoral-Client: alice\r\n"));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 202);
  EXPECT_EQ(answer->header("content-type"), "application/json");
  EXPECT_EQ(answer->header("location"), "/requests/" + id.str());
  EXPECT_EQ(answer->header("x-request-id"), id.str());
  const auto document = nlohmann::json::parse(answer->body);
  EXPECT_EQ(document["request_id"], id.str());
  EXPECT_EQ(document["state"], "queued");
  EXPECT_EQ(document["client"], "alice");
  EXPECT_EQ(document["links"]["self"], "/requests/" + id.str());
  const auto submission = live.store.submissions().at(0);
  EXPECT_FALSE(submission.synchronous);
  EXPECT_EQ(submission.max_attempts, 2);
  EXPECT_EQ(submission.program_text, kProgram);
  EXPECT_EQ(live.store.watching(), 0u);
}

TEST_F(LiveRequests, AProgramMaySayHowOftenItIsStarted) {
  client.send(enqueue(program_part(R"({"instructions":[{"op":"upload","id":"m","kind":"module","source":""}],)"
                                   R"("options":{"max_attempts":7}})") +
                      closing()));
  ASSERT_EQ(client.read_answer()->status, 202);
  EXPECT_EQ(live.store.submissions().at(0).max_attempts, 7);
}

TEST_F(LiveRequests, TheSameProgramAttachesWhateverHasBecomeOfIt) {
  submit();
  live.store.answer(id, FakeStore::document("{}"));
  client.send(enqueue_program(id_header(id)));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 202);
  EXPECT_EQ(nlohmann::json::parse(answer->body)["state"], "completed");
}

TEST_F(LiveRequests, AnotherProgramUnderTheSameIdIsAConflict) {
  submit();
  client.send(enqueue(bytes_program("") + blob_part("") + closing(), id_header(id)));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 409);
  EXPECT_EQ(error_kind(*answer), "conflict");
}

TEST_F(LiveRequests, MissingBlobsAreListed) {
  live.store.on_admit = [](const store::Submission& submission) {
    return store::Admission{store::Admission::Kind::kCacheMiss, submission.program.blobs};
  };
  client.send(enqueue(bytes_program("content") + closing()));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(nlohmann::json::parse(answer->body)["status"], "CACHE_MISS");
  EXPECT_EQ(answer->header("location"), "");
}

TEST_F(LiveRequests, RefusedBodiesAreNotAdmitted) {
  for (const std::string& request :
       {enqueue(closing()), enqueue(program_part("{}") + closing()),
        std::string("POST /requests HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")}) {
    RawClient other = live.client();
    other.send(request);
    EXPECT_EQ(error_kind(*other.read_answer()), "parse");
  }
  EXPECT_EQ(live.store.admitted(), 0u);
}

TEST_F(LiveRequests, AStoppingServerTakesNoMore) {
  submit();
  live.gateway->stop_admitting();
  client.send(enqueue_program());
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_NE(answer->header("retry-after"), "");
  RawClient asking = live.client();
  asking.send(get(path()));
  EXPECT_EQ(asking.read_answer()->status, 200) << "questions are still answered";
}

TEST_F(LiveRequests, StatusIsTheDocumentUnderTheCallsOwnId) {
  submit();
  live.store.start(id);
  const Uuid call = Uuid::random();
  const auto answer = ask(get(path(), id_header(call)));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("x-request-id"), call.str());
  EXPECT_EQ(nlohmann::json::parse(answer.body)["request_id"], id.str());
  EXPECT_EQ(nlohmann::json::parse(answer.body)["state"], "running");
}

TEST_F(LiveRequests, HeadAnswersAsGetWithoutTheBody) {
  submit();
  client.send("HEAD " + path() + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto answer = client.read_answer(true);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->header("content-length"), std::to_string(ask(get(path())).body.size()));
}

TEST_F(LiveRequests, UnknownRequestsAreNotFoundWhateverIsAsked) {
  const std::string unknown = "/requests/" + Uuid::random().str();
  for (const std::string& base : {unknown, std::string("/requests/7"), std::string("/requests/%20"),
                                  "/requests/" + std::string("01234567-89AB-cdef-0123-456789abcdef")}) {
    for (const char* below : {"", "?wait=1", "/result", "/program", "/audit", "/output", "/artifacts/k"}) {
      const auto answer = ask(get(base + below));
      EXPECT_EQ(answer.status, 404) << base << below;
      EXPECT_EQ(error_kind(answer), "not_found");
    }
    EXPECT_EQ(ask(remove(base)).status, 404);
  }
}

TEST_F(LiveRequests, OtherMethodsAndPathsAreRefused) {
  submit();
  for (const auto& [path, allow] :
       std::vector<std::pair<std::string, std::string>>{{"/requests", "POST, GET, HEAD"},
                                                        {this->path(), "GET, HEAD, DELETE"},
                                                        {path() + "/result", "GET, HEAD"},
                                                        {this->path() + "/artifacts/k", "GET, HEAD"}}) {
    const auto answer = ask("PUT " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(answer.status, 405);
    EXPECT_EQ(answer.header("allow"), allow);
    EXPECT_EQ(error_kind(answer), "method_not_allowed");
  }
  for (const std::string below : {"/", "/nothing", "/artifacts", "/artifacts/", "/artifacts/a/b", "/result/"}) {
    EXPECT_EQ(ask(get(path() + below)).status, 404) << below;
  }
}

TEST_F(LiveRequests, ParametersThatAreNotKnownAreRefused) {
  submit();
  for (const std::string target :
       {"?wait=1&wait=1", "?wait=x", "?wait=-1", "?wait=60.1", "?wait=", "?wait=inf", "?wait=nan", "?wait=1e999",
        "?wiat=1", "/result?x=1", "/program?x=1", "/audit?x", "/artifacts/k?x=1", "/output?stream=stdin",
        "/output?offset=-1", "/output?offset=x", "/output?offset=1&offset=1", "/output?stream=%ff"}) {
    const auto answer = ask(get(path() + target));
    EXPECT_EQ(answer.status, 400) << target;
    EXPECT_EQ(error_kind(answer), "parse");
  }
  EXPECT_EQ(ask(remove(path() + "?force=1")).status, 400);
  EXPECT_EQ(ask(get("/requests?limit=0")).status, 400);
  EXPECT_TRUE(live.store.cancellations().empty());
}

TEST_F(LiveRequests, TheProgramComesBackAsItWasSubmitted) {
  submit();
  const auto answer = ask(get(path() + "/program"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("content-type"), "application/json");
  EXPECT_EQ(answer.body, kProgram);
}

TEST_F(LiveRequests, AuditRecordsAreVerbatim) {
  submit();
  EXPECT_EQ(ask(get(path() + "/audit")).body, fmt::format(R"({{"request_id":"{}","records":[]}})", id.str()));
  live.store.records = {R"({"seq":0, "event":"admitted"})", R"({"seq":1,"event":"queued"})"};
  const auto answer = ask(get(path() + "/audit"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("content-type"), "application/json");
  EXPECT_EQ(answer.body, fmt::format(R"({{"request_id":"{}","records":[{},{}]}})", id.str(), live.store.records[0],
                                     live.store.records[1]));
}

TEST_F(LiveRequests, OutputSaysWhereToGoOn) {
  submit();
  live.store.on_output = [](store::OutputStream stream, uint64_t offset) -> Result<store::OutputPiece> {
    if (offset > 6) return fail(ErrorKind::kParse, "the output has 6 bytes");
    const std::string text = stream == store::OutputStream::kStdout ? "caf\u00e9\n" : "wrong\n";
    return store::OutputPiece{text.substr(offset), text.size(), stream == store::OutputStream::kStderr};
  };
  auto answer = ask(get(path() + "/output"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("content-type"), "text/plain; charset=utf-8");
  EXPECT_EQ(answer.body, "caf\u00e9\n");
  EXPECT_EQ(answer.header("x-kcoral-next-offset"), "6");
  EXPECT_EQ(answer.header("x-kcoral-complete"), "false");
  answer = ask(get(path() + "/output?stream=stderr&offset=2"));
  EXPECT_EQ(answer.body, "ong\n");
  EXPECT_EQ(answer.header("x-kcoral-complete"), "true");
  answer = ask(get(path() + "/output?offset=6&stream=stdout"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  EXPECT_EQ(ask(get(path() + "/output?offset=7")).status, 400);
}

TEST_F(LiveRequests, HistoryIsAPageOfStatusDocuments) {
  live.store.page.requests.emplace_back().request_id = id;
  live.store.page.next = store::HistoryCursor{5, 6};
  const auto answer = ask(get("/requests?state=running&label=run%3D7&limit=1"));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("content-type"), "application/json");
  const auto document = nlohmann::json::parse(answer.body);
  EXPECT_EQ(document["requests"].at(0)["request_id"], id.str());
  live.store.page = {};
  const auto last = ask(get("/requests?cursor=" + document["next_cursor"].get<std::string>()));
  EXPECT_EQ(last.body, R"({"requests":[],"next_cursor":null})");
  const auto queries = live.store.history_queries();
  EXPECT_EQ(queries.at(0).state, schema::State::kRunning);
  EXPECT_EQ(queries.at(0).label->second, "7");
  EXPECT_EQ(queries.at(0).count_max, 1u);
  EXPECT_EQ(queries.at(1).after, (store::HistoryCursor{5, 6}));
  EXPECT_EQ(queries.at(1).count_max, limits::kHistoryPageDefault);
}

TEST_F(LiveRequests, AQuestionFromElsewhereIsForbidden) {
  submit();
  EXPECT_EQ(ask(get(path(), "Origin: http://evil.example\r\n")).status, 403);
  EXPECT_EQ(ask(remove(path(), "Origin: http://evil.example\r\n")).status, 403);
}

}  // namespace
}  // namespace kcoral::gateway
