// POST /execute: bodies in every framing, admission, answers.
#include "tests/unit/gateway/live_gateway.h"

namespace kcoral::gateway {
namespace {

std::string chunked(std::string_view body, size_t chunk_bytes) {
  std::string wire;
  while (!body.empty()) {
    const std::string_view chunk = body.substr(0, chunk_bytes);
    body.remove_prefix(chunk.size());
    wire += fmt::format("{:x}\r\n{}\r\n", chunk.size(), chunk);
  }
  return wire + "0\r\n\r\n";
}

FakeStore::AnswerPtr echo(const store::Submission& submission) {
  return FakeStore::document(fmt::format(R"({{"ran":"{}"}})", submission.request_id.str()));
}

TEST(LiveExecute, TheOutcomeIsTheAnswer) {
  LiveGateway live;
  live.store.on_run = echo;
  RawClient client = live.client();
  const Uuid id = Uuid::random();
  client.send(execute_program(id_header(id) + "X-KCoral-Client: alice\r\n"));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->body, fmt::format(R"({{"ran":"{}"}})", id.str()));
  EXPECT_EQ(answer->header("x-request-id"), id.str());
  const auto submission = live.store.submissions().at(0);
  EXPECT_EQ(submission.request_id, id);
  EXPECT_EQ(submission.client, "alice");
  EXPECT_TRUE(submission.peer.starts_with("127.0.0.1:")) << submission.peer;
  EXPECT_TRUE(submission.synchronous);
  EXPECT_EQ(submission.max_attempts, 1);
  EXPECT_EQ(submission.program_text, kProgram);
  EXPECT_EQ(submission.program_sha256, Sha256::of(kProgram));
  EXPECT_EQ(submission.program.instructions.size(), 1u);
}

TEST(LiveExecute, AClientIsNamedByItsAddressOrByItself) {
  LiveGateway live;
  live.store.on_run = echo;
  RawClient client = live.client();
  client.send(execute_program());
  ASSERT_TRUE(client.read_answer());
  EXPECT_EQ(live.store.submissions().at(0).client, "127.0.0.1");
  for (const std::string& name : {std::string(129, 'x'), std::string("\xff")}) {
    RawClient other = live.client();
    other.send(execute_program("X-KCoral-Client: " + name + "\r\n"));
    EXPECT_EQ(other.read_answer()->status, 400);
  }
}

TEST(LiveExecute, AFreshIdIsGivenAndEchoed) {
  LiveGateway live;
  live.store.on_run = echo;
  RawClient client = live.client();
  for (const char* sent :
       {"", "X-Request-ID: nonsense\r\n", "X-Request-ID: 0123ABCD-0000-0000-0000-000000000000\r\n"}) {
    client.send(execute_program(sent));
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    const auto id = Uuid::parse(answer->header("x-request-id"));
    ASSERT_TRUE(id);
    EXPECT_EQ(live.store.submissions().back().request_id, *id);
  }
}

TEST(LiveExecute, ChunkedBodiesWork) {
  LiveGateway live;
  live.store.on_run = echo;
  RawClient client = live.client();
  const std::string content(100'000, 'x');
  const std::string body = bytes_program(content) + blob_part(content) + closing();
  for (const size_t chunk_bytes : {size_t{7}, size_t{4096}, body.size()}) {
    client.send(execute_head("Transfer-Encoding: chunked") + chunked(body, chunk_bytes) + get("/health"));
    EXPECT_EQ(client.read_answer()->status, 200) << chunk_bytes;
    EXPECT_EQ(client.read_answer()->status, 200) << "the next request begins where the body ends";
    EXPECT_EQ(*live.store.submissions().back().staged.at(0).content->view(), content);
  }
}

TEST(LiveExecute, AMalformedChunkIsAnsweredAndCloses) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(execute_head("Transfer-Encoding: chunked") + "zz\r\n" + get("/health"));
  EXPECT_EQ(client.read_answer()->status, 400);
  EXPECT_TRUE(client.at_end());
}

TEST(LiveExecute, ContinueIsSentBeforeTheBody) {
  LiveGateway live;
  live.store.on_run = echo;
  RawClient client = live.client();
  const std::string body = program_part() + closing();
  client.send(execute_head(fmt::format("Content-Length: {}", body.size()), "Expect: 100-continue\r\n"));
  EXPECT_EQ(client.read_answer()->status, 100);
  client.send(body);
  EXPECT_EQ(client.read_answer()->status, 200);
}

TEST(LiveExecute, ARefusedExpectationGetsTheFinalAnswerAtOnce) {
  GatewayConfig config;
  config.request_bytes_max = 1000;
  LiveGateway live(config);
  for (const std::string& head :
       {execute_head("Content-Length: 1001", "Expect: 100-continue\r\n"),
        std::string("POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"),
        std::string(
            "POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")}) {
    RawClient client = live.client();
    client.send(head);
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_GE(answer->status, 400);
    EXPECT_EQ(answer->header("connection"), "close");
    EXPECT_TRUE(client.at_end());
  }
}

TEST(LiveExecute, TooLargeIsSaidFromTheContentLength) {
  GatewayConfig config;
  config.request_bytes_max = 1000;
  LiveGateway live(config);
  for (const std::string& length : {std::string("1001"), std::string(19, '9'), std::string(40, '9')}) {
    RawClient client = live.client();
    client.send(execute_head("Content-Length: " + length));
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 413) << length;
    EXPECT_EQ(error_kind(*answer), "request_too_large");
    EXPECT_EQ(answer->header("connection"), "close");
    EXPECT_TRUE(client.at_end());
  }
}

TEST(LiveExecute, TooLargeIsSaidWhenAChunkIsAnnounced) {
  GatewayConfig config;
  config.request_bytes_max = 1000;
  LiveGateway live(config);
  RawClient client = live.client();
  client.send(execute_head("Transfer-Encoding: chunked") + "3e9\r\n");  // and not one byte of it
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 413);
  EXPECT_EQ(answer->header("connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST(LiveExecute, AChunkLongerThanItsSizeIsRefusedAtOnce) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(execute_head("Transfer-Encoding: chunked") + "2\r\n--x");  // no line break follows
  EXPECT_EQ(client.read_answer()->status, 400);
  EXPECT_TRUE(client.at_end());
}

TEST(LiveExecute, AClientThatSendsOnReadsItsErrorAllTheSame) {
  GatewayConfig config;
  config.request_bytes_max = 1000;
  LiveGateway live(config);
  RawClient client = live.client();
  constexpr size_t kBodyBytes = 32 << 20;
  client.send(execute_head(fmt::format("Content-Length: {}", kBodyBytes)));
  EXPECT_TRUE(client.send(std::string(kBodyBytes, 'x'))) << "a reset would have lost the answer";
  EXPECT_EQ(client.read_answer()->status, 413);
}

TEST(LiveExecute, RefusedBodiesAreNotAdmitted) {
  LiveGateway live;
  for (const std::string& request : {execute(closing()), execute(program_part("{}") + closing()),
                                     execute(program_part() + part("x", "text/plain", "") + closing()),
                                     std::string("POST /execute HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                                     std::string("POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                                 "application/json\r\nContent-Length: 2\r\n\r\n{}")}) {
    RawClient client = live.client();
    client.send(request);
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 400);
    EXPECT_EQ(error_kind(*answer), "parse");
  }
  EXPECT_EQ(live.store.admitted(), 0u);
}

TEST(LiveExecute, AnErrorInACompleteBodyKeepsTheConnection) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(execute(program_part("{}") + closing()));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_EQ(answer->header("connection"), "");
  client.send(get("/health"));
  EXPECT_EQ(client.read_answer()->status, 200);
}

TEST(LiveExecute, MissingBlobsAreListed) {
  LiveGateway live;
  live.store.on_admit = [](const store::Submission& submission) {
    return store::Admission{store::Admission::Kind::kCacheMiss, submission.program.blobs};
  };
  RawClient client = live.client();
  client.send(execute(bytes_program("content") + closing()));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  const auto body = nlohmann::json::parse(answer->body);
  EXPECT_EQ(body["status"], "CACHE_MISS");
  EXPECT_EQ(body["missing_blobs"], nlohmann::json::array({Sha256::of("content").hex()}));
}

TEST(LiveExecute, ErrorsOfAdmissionKeepTheirKind) {
  LiveGateway live;
  ErrorKind kind{};
  live.store.on_admit = [&kind](const store::Submission&) -> Result<store::Admission> { return fail(kind, "refused"); };
  RawClient client = live.client();
  for (const auto& [each, status, name] :
       std::vector<std::tuple<ErrorKind, int, std::string>>{{ErrorKind::kConflict, 409, "conflict"},
                                                            {ErrorKind::kParse, 400, "parse"},
                                                            {ErrorKind::kBusy, 503, "busy"},
                                                            {ErrorKind::kEngine, 500, "engine"}}) {
    kind = each;
    client.send(execute_program());
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, status);
    EXPECT_EQ(error_kind(*answer), name);
    EXPECT_EQ(answer->header("retry-after") != "", status == 503);
  }
}

TEST(LiveExecute, AnAttachedClientGetsTheSameOutcome) {
  LiveGateway live;
  bool first = true;
  live.store.on_admit = [&first](const store::Submission&) {
    const auto kind =
        std::exchange(first, false) ? store::Admission::Kind::kAdmitted : store::Admission::Kind::kAttached;
    return store::Admission{kind, {}};
  };
  const Uuid id = Uuid::random();
  RawClient one = live.client();
  RawClient two = live.client();
  one.send(execute_program(id_header(id)));
  two.send(execute_program(id_header(id)));
  live.store.wait_until([&] { return live.store.watching() == 2; });
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_EQ(one.read_answer()->body, "{}");
  EXPECT_EQ(two.read_answer()->body, "{}");
}

TEST(LiveExecute, RequestsBehindAWaitingOneWait) {
  LiveGateway live;
  RawClient client = live.client();
  const Uuid id = Uuid::random();
  client.send(execute_program(id_header(id)) + get("/health"));
  client.close_sending();
  live.store.wait_until([&] { return live.store.watching() == 1; });
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_EQ(client.read_answer()->header("x-request-id"), id.str());
  EXPECT_EQ(client.read_answer()->status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST(LiveExecute, AClientThatClosedItsSendingHalfIsAskedWhetherItIsThereAndAnswered) {
  GatewayConfig config;
  config.half_closed_probe = std::chrono::milliseconds(20);
  LiveGateway live(config);
  RawClient client = live.client();
  const Uuid id = Uuid::random();
  client.send(execute_program(id_header(id)));
  client.close_sending();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.read_answer()->status, 100);
  EXPECT_EQ(live.store.watching(), 1u);
  live.store.answer(id, FakeStore::document("{}"));
  auto answer = client.read_answer();
  while (answer && answer->status == 100) answer = client.read_answer();
  EXPECT_EQ(answer->body, "{}");
  EXPECT_TRUE(client.at_end());
}

TEST(LiveExecute, AClientThatClosedItsConnectionIsNoticed) {
  GatewayConfig config;
  config.half_closed_probe = std::chrono::milliseconds(20);
  LiveGateway live(config);
  RawClient client = live.client();
  client.send(execute_program());
  live.store.wait_until([&] { return live.store.watching() == 1; });
  client.close();
  live.store.wait_until([&] { return live.store.watching() == 0; });
}

TEST(LiveExecute, AClientThatGoesAwayIsForgottenAndItsRequestIsNot) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(execute_program());
  live.store.wait_until([&] { return live.store.watching() == 1; });
  client.reset();
  live.store.wait_until([&] { return live.store.watching() == 0; });
  EXPECT_EQ(live.store.admitted(), 1u);
  EXPECT_TRUE(live.store.rejected().empty());
}

TEST(LiveExecute, PartsOfAnAnswerArriveByteForByte) {
  LiveGateway live;
  const auto memory = *SealedMemory::copy_of("0123456789");
  const auto answer = std::make_shared<const schema::Answer>(schema::make_result_answer(
      R"({"status":"COMPLETED"})", {{{memory, 2, 3}, Sha256::of("234")}, {{memory, 0, 0}, Sha256::of("")}}));
  live.store.on_run = [&](const store::Submission&) { return answer; };
  std::string expected;
  for (const auto& segment : answer->body()) {
    if (const auto* extent = std::get_if<schema::Extent>(&segment)) {
      expected += extent->memory->view()->substr(extent->offset, extent->length);
    } else if (const auto* text = std::get_if<std::string>(&segment)) {
      expected += *text;
    } else {
      expected += std::get<std::string_view>(segment);
    }
  }
  RawClient client = live.client();
  for (int i = 0; i < 2; ++i) {
    client.send(execute_program());
    const auto got = client.read_answer();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->header("content-type"), answer->content_type());
    EXPECT_EQ(got->body, expected);
  }
}

TEST(LiveExecute, ABigAnswerToASlowReaderHoldsNobodyUp) {
  GatewayConfig config;
  config.io_threads = 1;  // everybody shares the slow reader's thread
  LiveGateway live(config);
  constexpr size_t kPartBytes = 64 << 20;
  std::string content(kPartBytes, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 2654435761u >> 13);
  const auto memory = *SealedMemory::copy_of(content);
  const Digest digest = Sha256::of(content);
  live.store.on_run = [&](const store::Submission&) {
    return std::make_shared<const schema::Answer>(
        schema::make_result_answer("{}", {{{memory, 0, kPartBytes}, digest}}));
  };
  RawClient slow(live.port(), 64 << 10);
  slow.send(execute_program());
  ASSERT_TRUE(slow.receive(1000));
  RawClient other = live.client();
  size_t answered = 0;
  while (slow.input().size() < kPartBytes) {
    const size_t before = slow.input().size();
    const size_t until = std::min<size_t>(before + (4 << 20), kPartBytes);
    while (slow.input().size() < until && slow.receive()) {
    }
    ASSERT_GT(slow.input().size(), before);
    other.send(get("/health"));
    const auto health = other.read_answer();
    ASSERT_TRUE(health);
    if (health->status == 200) ++answered;
  }
  EXPECT_GE(answered, 15u);
  const auto answer = slow.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_NE(answer->body.find(content), std::string::npos);
}

}  // namespace
}  // namespace kcoral::gateway
