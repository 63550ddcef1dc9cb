// How a gateway stops.
#include "tests/unit/gateway/live_gateway.h"

namespace kcoral::gateway {
namespace {

TEST(LiveStop, StartsAndStopsAtOnce) {
  for (int i = 0; i < 20; ++i) LiveGateway live;
}

TEST(LiveStop, NewProgramsAreBusyOnceItDoesNotAdmit) {
  LiveGateway live;
  RawClient waiting = live.client();
  const Uuid id = Uuid::random();
  waiting.send(execute_program(id_header(id)));
  RawClient uploading = live.client();
  const std::string body = program_part() + closing();
  uploading.send(execute_head(fmt::format("Content-Length: {}", body.size()), "Expect: 100-continue\r\n"));
  ASSERT_EQ(uploading.read_answer()->status, 100);
  live.store.wait_until([&] { return live.store.watching() == 1; });

  live.gateway->stop_admitting();
  uploading.send(body);
  RawClient late = live.client();
  late.send(execute_program());
  for (RawClient* client : {&uploading, &late}) {
    const auto answer = client->read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 503);
    EXPECT_EQ(error_kind(*answer), "busy");
    EXPECT_NE(answer->header("retry-after"), "");
  }
  RawClient health = live.client();
  health.send(get("/health"));
  EXPECT_EQ(health.read_answer()->status, 200);
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_EQ(waiting.read_answer()->status, 200) << "what was admitted is waited for";
  EXPECT_EQ(live.store.admitted(), 1u);
}

TEST(LiveStop, ReleasedClientsAreToldThatTheirRequestIsKept) {
  LiveGateway live;
  std::vector<RawClient> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(live.client());
    clients.back().send(execute_program());
  }
  live.store.wait_until([&] { return live.store.watching() == clients.size(); });
  live.store.hold(true);
  RawClient admitting = live.client();
  admitting.send(execute_program());
  RawClient after = live.client();  // answered after the gateway has read the program before it
  after.send(get("/health"));
  ASSERT_TRUE(after.read_answer());

  live.gateway->stop_admitting();
  live.gateway->release_waiting();
  live.store.hold(false);
  clients.push_back(std::move(admitting));
  for (RawClient& client : clients) {
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 503);
    EXPECT_EQ(error_kind(*answer), "busy");
  }
  EXPECT_EQ(live.store.watching(), 0u);
  EXPECT_TRUE(live.store.rejected().empty());
}

TEST(LiveStop, AnAnswerBeingSentArrivesAndTheRestIsClosed) {
  LiveGateway live;
  const std::string content(16 << 20, 'x');
  const auto memory = *SealedMemory::copy_of(content);
  live.store.on_run = [&](const store::Submission&) {
    return std::make_shared<const schema::Answer>(
        schema::make_result_answer("{}", {{{memory, 0, content.size()}, {}}}));
  };
  RawClient reading(live.port(), 64 << 10);
  reading.send(execute_program());
  ASSERT_TRUE(reading.receive(1000));
  RawClient idle = live.client();
  idle.send(get("/health"));
  ASSERT_TRUE(idle.read_answer());

  std::thread stopping([&] { live.gateway->stop(); });
  EXPECT_TRUE(idle.at_end());
  const auto answer = reading.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_NE(answer->body.find(content), std::string::npos);
  stopping.join();
}

TEST(LiveStop, WaitingClientsDoNotHoldItUpAndTheStoreMayStillCallBack) {
  LiveGateway live;
  RawClient client = live.client();
  const Uuid id = Uuid::random();
  client.send(execute_program(id_header(id)));
  live.store.wait_until([&] { return live.store.watching() == 1; });
  live.store.hold(true);
  RawClient other = live.client();
  other.send(execute_program());
  live.gateway->stop();
  live.store.hold(false);
  live.store.answer(id, FakeStore::document("{}"));
  EXPECT_TRUE(client.at_end());
  live.gateway->stop();
}

}  // namespace
}  // namespace kcoral::gateway
