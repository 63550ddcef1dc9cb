// Limits of time and number. Time stands still until a test moves it; a thread looks at its timers whenever something
// happens on it, so a test that moved the clock asks for /health.
#include "tests/unit/gateway/live_requests.h"

namespace kcoral::gateway {
namespace {

using namespace std::chrono_literals;

class LiveLimits : public ::testing::Test {
 protected:
  static GatewayConfig config() {
    GatewayConfig config;
    config.io_threads = 1;
    config.worker_wait = 1800s;
    return config;
  }
  /// Moves time, and waits until the gateway has seen it.
  void advance(std::chrono::seconds by) {
    clock.advance(by);
    for (int i = 0; i < 2; ++i) health();
  }
  void health() {
    RawClient client = live.client();
    client.send(get("/health"));
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
  }

  /// Enqueues a program.
  Uuid submit() {
    const Uuid id = Uuid::random();
    RawClient client = live.client();
    client.send(enqueue_program(id_header(id)));
    EXPECT_EQ(client.read_answer()->status, 202);
    return id;
  }
  /// Executes a program, and goes away before its answer.
  Uuid abandon() {
    const Uuid id = Uuid::random();
    RawClient client = live.client();
    client.send(execute_program(id_header(id)));
    live.store.wait_until([&] { return live.store.watching() == 1; });
    client.reset();
    live.store.wait_until([&] { return live.store.watching() == 0; });
    return id;
  }

  FakeClock clock;
  LiveGateway live{config(), clock};
};

TEST_F(LiveLimits, AnIdleConnectionIsClosedWithoutAWord) {
  RawClient fresh = live.client();
  RawClient used = live.client();
  used.send(get("/health"));
  ASSERT_TRUE(used.read_answer());
  advance(74s);
  used.send(get("/health"));
  ASSERT_TRUE(used.read_answer()) << "not yet";
  advance(2s);
  EXPECT_TRUE(fresh.at_end());
  used.send(get("/health"));
  EXPECT_TRUE(used.read_answer()) << "its time counts from its last request";
}

TEST_F(LiveLimits, AHeadThatDoesNotArriveIsAnswered) {
  RawClient client = live.client();
  client.send("GET /hea");
  health();
  for (int i = 0; i < 3; ++i) {
    advance(10s);
    client.send("x");
    health();
  }
  advance(1s);
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer) << "its time counts from its first byte, whatever drips in";
  EXPECT_EQ(answer->status, 400);
  EXPECT_TRUE(client.at_end());
}

TEST_F(LiveLimits, AnUploadThatProgressesMayTakeAsLongAsItWants) {
  RawClient client = live.client();
  live.store.on_run = [](const store::Submission&) { return FakeStore::document("{}"); };
  const std::string body = program_part() + closing();
  client.send(execute_head(fmt::format("Content-Length: {}", body.size())));
  for (size_t i = 0; i < body.size(); i += 20) {
    client.send(std::string_view(body).substr(i, 20));
    health();
    advance(59s);
  }
  EXPECT_EQ(client.read_answer()->status, 200);
}

TEST_F(LiveLimits, AnUploadThatStallsIsAnswered) {
  RawClient client = live.client();
  client.send(execute_head("Content-Length: 1000") + "--frontier");
  health();
  advance(61s);
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
  EXPECT_TRUE(client.at_end());
}

TEST_F(LiveLimits, AReaderThatStallsIsCutOff) {
  const auto memory = *SealedMemory::copy_of(std::string(64 << 20, 'x'));
  live.store.on_run = [&](const store::Submission&) {
    return std::make_shared<const schema::Answer>(
        schema::make_result_answer("{}", {{{memory, 0, memory->size_bytes()}, {}}}));
  };
  RawClient client(live.port(), 64 << 10);
  client.send(execute_program());
  ASSERT_TRUE(client.receive(1000));
  live.store.wait_until([&] {
    advance(61s);  // until its buffers are full and it makes no more progress
    return memory.use_count() <= 2;
  });
  EXPECT_FALSE(client.read_answer()) << "cut off in the middle";
}

TEST_F(LiveLimits, NoTimeLimitRunsWhileAnAnswerIsAwaited) {
  RawClient client = live.client();
  const Uuid id = Uuid::random();
  client.send(execute_program(id_header(id)));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  advance(1700s);
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_EQ(client.read_answer()->status, 200);
}

TEST_F(LiveLimits, TheWaitForAWorkerEndsInARejection) {
  RawClient client = live.client();
  const Uuid id = Uuid::random();
  client.send(execute_program(id_header(id)));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  advance(1799s);
  EXPECT_TRUE(live.store.rejected().empty());
  advance(2s);
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(error_kind(*answer), "busy");
  EXPECT_NE(answer->header("retry-after"), "");
  EXPECT_EQ(live.store.rejected(), std::vector<Uuid>{id});
}

TEST_F(LiveLimits, ALongPollEndsAfterItsWait) {
  const Uuid id = submit();
  RawClient client = live.client();
  client.send(get("/requests/" + id.str() + "?wait=59.5"));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  live.store.start(id);
  advance(59s);
  EXPECT_EQ(live.store.watching(), 1u);
  advance(1s);
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(nlohmann::json::parse(answer->body)["state"], "running") << "as it is then";
  EXPECT_EQ(live.store.watching(), 0u);
}

TEST_F(LiveLimits, WhatItsClientAbandonedIsCancelled) {
  const Uuid id = abandon();
  advance(9s);
  EXPECT_TRUE(live.store.cancellations().empty());
  advance(1s);
  live.store.wait_until([&] { return !live.store.cancellations().empty(); });
  EXPECT_EQ(live.store.cancellations(), std::vector({FakeStore::Cancellation(id, store::CancelBy::kNobody)}));
}

TEST_F(LiveLimits, AClientThatIsBackInTimeFindsItsRequest) {
  const Uuid id = abandon();
  advance(9s);
  RawClient back = live.client();
  back.send(execute_program(id_header(id)));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  advance(100s);
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_EQ(back.read_answer()->status, 200);
  EXPECT_TRUE(live.store.cancellations().empty());
}

TEST_F(LiveLimits, AClientThatIsBackInTimeMayTakeItsTimeToSend) {
  const Uuid id = abandon();
  RawClient back = live.client();
  const std::string request = execute_program(id_header(id));
  back.send(std::string_view(request).substr(0, request.size() - 1));
  health();
  advance(50s);
  EXPECT_TRUE(live.store.cancellations().empty());
  back.send(std::string_view(request).substr(request.size() - 1));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_EQ(back.read_answer()->status, 200);
}

TEST_F(LiveLimits, WhoNeverSentAProgramToItsEndHasAbandonedNothing) {
  const Uuid id = Uuid::random();
  RawClient client = live.client();
  client.send(execute_head("Content-Length: 1000", id_header(id)));
  health();
  client.reset();
  health();
  advance(100s);
  EXPECT_TRUE(live.store.cancellations().empty());
}

TEST_F(LiveLimits, WhoPollsForTheEndKeepsARequest) {
  const Uuid id = abandon();
  RawClient polling = live.client();
  polling.send(get("/requests/" + id.str() + "?wait=60"));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  advance(50s);
  EXPECT_TRUE(live.store.cancellations().empty());
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_EQ(polling.read_answer()->status, 200);
}

TEST_F(LiveLimits, AClientThatGoesBeforeItsProgramIsAdmittedHasAbandonedIt) {
  live.store.hold(true);
  RawClient client = live.client();
  const Uuid id = Uuid::random();
  client.send(execute_program(id_header(id)));
  live.store.wait_until([&] { return live.store.asked() == 1; });
  client.reset();
  health();
  live.store.hold(false);
  live.store.wait_until([&] {
    advance(10s);
    return !live.store.cancellations().empty();
  });
  EXPECT_EQ(live.store.cancellations().at(0), FakeStore::Cancellation(id, store::CancelBy::kNobody));
}

TEST_F(LiveLimits, WhatIsPolledForIsNotAbandoned) {
  submit();
  advance(100s);
  EXPECT_TRUE(live.store.cancellations().empty());
}

TEST_F(LiveLimits, AnAnsweredRequestIsNotAbandoned) {
  live.store.on_run = [](const store::Submission&) { return FakeStore::document("{}"); };
  RawClient client = live.client();
  client.send(execute_program());
  ASSERT_EQ(client.read_answer()->status, 200);
  client.reset();
  advance(100s);
  EXPECT_TRUE(live.store.cancellations().empty());
}

TEST_F(LiveLimits, AServerThatStopsAbandonsNothing) {
  abandon();
  live.gateway->release_waiting();
  advance(100s);
  EXPECT_TRUE(live.store.cancellations().empty());
}

TEST(LiveConnections, BeyondTheCapAreClosedAtOnce) {
  GatewayConfig config;
  config.connections_max = 3;
  LiveGateway live(config);
  std::vector<RawClient> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(live.client());
    held.back().send(get("/health"));
    ASSERT_TRUE(held.back().read_answer());
  }
  RawClient refused = live.client();
  EXPECT_TRUE(refused.at_end());
  held.pop_back();
  live.store.wait_until([&] {
    RawClient next = live.client();
    return next.send(get("/health")) && next.read_answer().has_value();
  });
}

}  // namespace
}  // namespace kcoral::gateway
