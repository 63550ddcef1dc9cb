// The budget over all bodies being received, over real sockets.
#include "tests/unit/gateway/live_gateway.h"

namespace kcoral::gateway {
namespace {

constexpr uint64_t kBudgetBytes = 100'000;

class LiveBudget : public ::testing::Test {
 protected:
  static GatewayConfig config() {
    GatewayConfig config;
    config.request_bytes_max = kBudgetBytes;
    config.bodies_bytes_max = kBudgetBytes;
    config.staged_blobs_max = 2;
    return config;
  }
  LiveBudget() {
    live.store.on_run = [](const store::Submission&) { return FakeStore::document("{}"); };
  }

  /// A body of exactly `bytes`, most of it a blob.
  static std::string body(size_t bytes) {
    const auto with_blob_of = [](size_t blob_bytes) {
      const std::string content(blob_bytes, 'x');
      return blob_part(content) + bytes_program(content) + closing();
    };
    return with_blob_of(bytes - with_blob_of(0).size());
  }
  /// A chunked body's begin that holds `bytes` of a blob (and of its part's head).
  static std::string unfinished(size_t bytes) {
    const std::string begin = body(kBudgetBytes).substr(0, bytes);
    return execute_head("Transfer-Encoding: chunked") + fmt::format("{:x}\r\n{}\r\n", begin.size(), begin);
  }
  static std::string rest_of(size_t bytes) {
    const std::string rest = body(kBudgetBytes).substr(bytes);
    return fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", rest.size(), rest);
  }
  static void expect_busy(RawClient& client) {
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 503);
    EXPECT_EQ(error_kind(*answer), "busy");
    EXPECT_NE(answer->header("retry-after"), "");
    EXPECT_EQ(answer->header("connection"), "close");
    EXPECT_TRUE(client.at_end());
  }
  int status_of(const std::string& request) {
    RawClient client = live.client();
    client.send(request);
    client.close_sending();  // so that a request that is not complete is answered too
    const auto answer = client.read_answer();
    return answer ? answer->status : 0;
  }
  /// Waits until nearly `bytes` have arrived (parts' heads are not counted): then the rest has no room for more.
  void wait_until_taken(size_t bytes) {
    const std::string more = execute_head(fmt::format("Content-Length: {}", kBudgetBytes - bytes + 1000));
    live.store.wait_until([&] { return status_of(more) == 503; });
  }
  /// A body that needs the whole budget passes only if nothing is taken.
  void expect_empty_at_last() {
    live.store.wait_until([&] { return status_of(execute(body(kBudgetBytes))) == 200; });
  }

  LiveGateway live{config()};
};

TEST_F(LiveBudget, ASecondBodyIsBusyAndPassesOnceTheFirstIsDone) {
  RawClient first = live.client();
  first.send(unfinished(60'000));
  wait_until_taken(60'000);
  RawClient announced = live.client();
  announced.send(execute_head("Content-Length: 60000", "Expect: 100-continue\r\n"));
  expect_busy(announced);
  RawClient growing = live.client();
  growing.send(unfinished(60'000));
  expect_busy(growing);
  EXPECT_EQ(status_of(execute(body(20'000))), 200) << "a small one has room";

  first.send(rest_of(60'000));
  EXPECT_EQ(first.read_answer()->status, 200);
  EXPECT_EQ(status_of(execute(body(kBudgetBytes))), 200);
}

TEST_F(LiveBudget, ABodyThatIsRefusedInItsLastPieceClosesToo) {
  RawClient first = live.client();
  first.send(unfinished(60'000));
  wait_until_taken(60'000);
  RawClient second = live.client();
  const std::string whole = body(60'000);
  second.send(execute_head("Transfer-Encoding: chunked") + fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", whole.size(), whole) +
              get("/health"));
  expect_busy(second);
}

TEST_F(LiveBudget, AbandonedAndRefusedBodiesGiveEverythingBack) {
  for (int round = 0; round < 5; ++round) {
    RawClient reset = live.client();
    RawClient ended = live.client();
    reset.send(unfinished(30'000));
    ended.send(unfinished(30'000));
    wait_until_taken(60'000);
    reset.reset();
    ended.close_sending();
    EXPECT_EQ(ended.read_answer()->status, 400);
    expect_empty_at_last();
  }
  RawClient refused = live.client();
  refused.send(execute(blob_part(std::string(60'000, 'x')) + program_part("{}") + closing()));
  EXPECT_EQ(refused.read_answer()->status, 400);
  RawClient malformed = live.client();
  malformed.send(unfinished(60'000) + "zz\r\n");
  EXPECT_EQ(malformed.read_answer()->status, 400);
  expect_empty_at_last();
}

TEST_F(LiveBudget, WhatTheStoreHasNotTakenOverIsStillCounted) {
  live.store.hold(true);
  RawClient first = live.client();
  first.send(execute(body(60'000)));
  live.store.wait_until([&] { return live.store.asked() == 1; });
  first.reset();
  RawClient second = live.client();
  second.send(execute(body(60'000)));
  expect_busy(second);
  live.store.hold(false);
  expect_empty_at_last();
}

TEST_F(LiveBudget, BlobsBeingStagedAreCounted) {
  const std::string three = blob_part("a") + blob_part("b") + blob_part("c");
  RawClient too_many = live.client();
  too_many.send(execute_head("Content-Length: 50000") + three);
  EXPECT_EQ(too_many.read_answer()->status, 413) << "no waiting helps it";

  RawClient first = live.client();
  first.send(execute_head("Content-Length: 90000") + blob_part("a") + blob_part(std::string(60'000, 'b')));
  wait_until_taken(60'000);
  EXPECT_EQ(status_of(execute(bytes_program("c") + blob_part("c") + closing())), 503);
  EXPECT_EQ(status_of(execute_program()), 200) << "without blobs";
  first.reset();
  live.store.wait_until([&] { return status_of(execute(bytes_program("c") + blob_part("c") + closing())) == 200; });
}

TEST(LiveBudgetDefault, OneBodyOfTheLargestSizeAlwaysHasRoom) {
  GatewayConfig config;
  config.bodies_bytes_max = 1;
  LiveGateway live(config);
  live.store.on_run = [](const store::Submission&) { return FakeStore::document("{}"); };
  RawClient client = live.client();
  client.send(execute_program());
  EXPECT_EQ(client.read_answer()->status, 200);
}

}  // namespace
}  // namespace kcoral::gateway
