// Clients that come and go as they please while answers are under way. Descriptors are reused all the time; an answer
// must reach the client that asked, or nobody.
#include "tests/unit/gateway/live_gateway.h"
#include "tests/unit/gateway/seed.h"

namespace kcoral::gateway {
namespace {

/// Answers each request with its own id, later and in random order, from the store's thread.
class LateAnswers {
 public:
  LateAnswers(FakeStore& store, uint64_t seed) : store_(store), random_(seed) {
    store_.on_run = [this](const store::Submission& submission) -> FakeStore::AnswerPtr {
      pending_.push_back(submission.request_id);
      // At least every other request stays behind for a while; whoever waits for the last one gets it in the end.
      while (pending_.size() > (holding_back_ ? random_() % 4 : 0)) settle_one();
      return nullptr;
    };
  }

  /// From the next request on nobody stays behind.
  void stop_holding_back() { holding_back_ = false; }

 private:
  void settle_one() {
    std::swap(pending_[random_() % pending_.size()], pending_.back());
    store_.answer(pending_.back(), FakeStore::document(pending_.back().str()));
    pending_.pop_back();
  }

  FakeStore& store_;
  std::mt19937_64 random_;
  std::vector<Uuid> pending_;  // only on the store's thread
  std::atomic<bool> holding_back_{true};
};

class ChurningClient {
 public:
  ChurningClient(uint16_t port, uint64_t seed) : port_(port), random_(seed) {}

  void round() {
    RawClient client(port_);
    std::vector<Uuid> ids;
    std::string requests;
    for (size_t count = 1 + random_() % 3; count > 0; --count) {
      ids.push_back(Uuid::random());
      requests += random_() % 5 == 0 ? get("/health", id_header(ids.back())) : execute_program(id_header(ids.back()));
    }
    switch (random_() % 5) {
      case 0:  // gone in the middle of a request
        client.send(std::string_view(requests).substr(0, random_() % requests.size()));
        return leave(client);
      case 1:  // gone while it waits
        client.send(requests);
        return leave(client);
      case 2:  // reads some
        client.send(requests);
        if (expect_answer(client, ids.front())) ++answered;
        return leave(client);
      default:
        client.send(requests);
        if (random_() % 2 == 0) client.close_sending();
        for (const Uuid& id : ids) {
          if (expect_answer(client, id)) ++answered;
        }
    }
  }

  size_t answered = 0;

 private:
  void leave(RawClient& client) {
    if (random_() % 2 == 0) client.reset();
  }
  bool expect_answer(RawClient& client, const Uuid& id) {
    const auto answer = client.read_answer();
    EXPECT_TRUE(answer) << "no answer";
    if (!answer) return false;
    EXPECT_EQ(answer->header("x-request-id"), id.str());
    if (!answer->body.starts_with('{')) {
      EXPECT_EQ(answer->body, id.str()) << "somebody else's answer";
    }
    return true;
  }

  const uint16_t port_;
  std::mt19937_64 random_;
};

TEST(Churn, EveryAnswerReachesTheClientThatAsked) {
  constexpr size_t kClients = 4;
  constexpr int kRounds = 1000;
  const uint64_t seed = test_seed();
  LiveGateway live;
  LateAnswers answers(live.store, seed);
  std::atomic<bool> running{true};
  // Requests keep coming, so that whoever is left pending is settled.
  std::thread pacemaker([&] {
    while (running) {
      RawClient client(live.port());
      client.send(execute_program());
      client.reset();
    }
  });
  std::atomic<size_t> answered{0};
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      ChurningClient client(live.port(), seed + i);
      for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) client.round();
      answered += client.answered;
    });
  }
  for (auto& client : clients) client.join();
  running = false;
  pacemaker.join();
  EXPECT_GT(answered, kClients * kRounds / 2);
  // One who left without a reset may still read for all that the server can tell: its watch ends with its answer.
  answers.stop_holding_back();
  RawClient last(live.port());
  last.send(execute_program());
  EXPECT_TRUE(last.read_answer());
  live.store.wait_until([&] { return live.store.watching() == 0; });
  // What somebody left behind may still be on its way to `answers`.
  live.gateway->stop();
  live.store.close();
}

}  // namespace
}  // namespace kcoral::gateway
