// HTTP itself, over real sockets: framing, connections, routes, who may ask.
#include <fcntl.h>

#include "schema/limits.h"
#include "tests/unit/gateway/live_gateway.h"

namespace kcoral::gateway {
namespace {

TEST(LiveHttp, HealthHasExactlyTheFieldsOfTheContract) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(get("/health"));
  const auto answer = client.read_answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->header("content-type"), "application/json");
  const auto body = nlohmann::json::parse(answer->body);
  EXPECT_EQ(body,
            nlohmann::json::parse(R"({"status":"ok","instance_id":"instance","started_at":"1970-01-01T00:00:00.000000Z",
    "gpu_count":0,"load":{"request_capacity":1,"requests_in_progress":0,"requests_waiting":0},"target":{},
    "versions":{"kcoral":"0.1.0"}})"));
}

TEST(LiveHttp, KeepsConnectionsAliveAsTheyAsk) {
  LiveGateway live;
  RawClient client = live.client();
  for (int i = 0; i < 3; ++i) {
    client.send(get("/health"));
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->header("connection"), "");
  }
  client.send(get("/health", "Connection: close\r\n"));
  EXPECT_EQ(client.read_answer()->header("connection"), "close");
  EXPECT_TRUE(client.at_end());
}

TEST(LiveHttp, SpeaksHttp10) {
  LiveGateway live;
  RawClient client = live.client();
  client.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(client.read_answer()->header("connection"), "keep-alive");
  client.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.read_answer()->status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST(LiveHttp, AnswersPipelinedRequestsInOrder) {
  LiveGateway live;
  RawClient client = live.client();
  std::string requests;
  std::vector<Uuid> ids;
  for (int i = 0; i < 500; ++i) {
    ids.push_back(Uuid::random());
    requests += "\r\n" + get(i % 3 == 0 ? "/nowhere" : "/health", id_header(ids.back()));
  }
  client.send(requests);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, i % 3 == 0 ? 404 : 200);
    EXPECT_EQ(answer->header("x-request-id"), ids[i].str());
  }
}

TEST(LiveHttp, AHeadMayArriveByteByByte) {
  LiveGateway live;
  RawClient client = live.client();
  for (const char c : get("/health")) client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.read_answer()->status, 200);
}

TEST(LiveHttp, AClientThatClosedItsSendingHalfIsAnswered) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(get("/health") + get("/health"));
  client.close_sending();
  EXPECT_EQ(client.read_answer()->status, 200);
  EXPECT_EQ(client.read_answer()->status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST(LiveHttp, HeadAnswersAsGetWithoutTheBody) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(get("/health"));
  const auto got = client.read_answer();
  for (const auto& [path, status] :
       std::vector<std::pair<std::string, int>>{{"/health", 200}, {"/nowhere", 404}, {"/execute", 405}}) {
    client.send("HEAD " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const auto answer = client.read_answer(true);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, status);
    EXPECT_EQ(answer->header("content-type"), "application/json");
    EXPECT_NE(answer->header("x-request-id"), "");
    if (status == 200) {
      EXPECT_EQ(answer->header("content-length"), got->header("content-length"));
    }
    if (status != 200) {
      EXPECT_GT(std::stoi(answer->header("content-length")), 0);
    }
  }
  client.send(get("/health"));
  EXPECT_EQ(client.read_answer()->status, 200) << "nothing of a body stood in between";
}

TEST(LiveHttp, MetricsArePlainText) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(get("/metrics"));
  const auto got = client.read_answer();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, 200);
  EXPECT_EQ(got->header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(got->header("x-request-id"), "");
  EXPECT_NE(got->body.find("\nkcoral_build_info{version=\"0.1.0\"} 1\n"), std::string::npos) << got->body;
  client.send("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read_answer(true)->header("content-length"), got->header("content-length"));
  client.send("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  const auto refused = client.read_answer();
  EXPECT_EQ(refused->status, 405);
  EXPECT_EQ(refused->header("allow"), "GET, HEAD");
}

TEST(LiveHttp, UnknownPathsAndMethodsCarryTheErrorBody) {
  LiveGateway live;
  RawClient client = live.client();
  for (const char* path : {"/", "/execute/", "/health/", "/Health", "//health", "/requests/", "/health%20"}) {
    client.send(get(path));
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->status, 404) << path;
    EXPECT_EQ(error_kind(*answer), "not_found");
  }
  client.send("BREW /execute HTTP/1.1\r\nHost: localhost\r\n\r\n");
  auto answer = client.read_answer();
  EXPECT_EQ(answer->status, 405);
  EXPECT_EQ(answer->header("allow"), "POST");
  EXPECT_EQ(error_kind(*answer), "method_not_allowed");
  client.send("DELETE /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  answer = client.read_answer();
  EXPECT_EQ(answer->status, 405);
  EXPECT_EQ(answer->header("allow"), "GET, HEAD");
}

TEST(LiveHttp, AQueryAndABodyDoNotDisturbHealth) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(get("/health?verbose=1", "Content-Length: 5\r\n") + "hello" + get("/health"));
  EXPECT_EQ(client.read_answer()->status, 200);
  EXPECT_EQ(client.read_answer()->status, 200);
}

TEST(LiveHttp, OddHeadersAreNoError) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(get("/health",
                  "Accept: nonsense\r\nCookie: ;;=\r\nUser-Agent: \xff\r\nConnection: ,\r\nContent-Encoding: x\r\n"));
  EXPECT_EQ(client.read_answer()->status, 200);
}

TEST(LiveHttp, FramingInDoubtIsAnsweredAndCloses) {
  LiveGateway live;
  const Uuid id = Uuid::random();
  for (const std::string headers : {"Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: -1\r\n",
                                    "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
                                    "Transfer-Encoding: gzip\r\n", "A: b\r\n folded\r\n", "Expect: 200-ok\r\n"}) {
    RawClient client = live.client();
    client.send("POST /execute HTTP/1.1\r\nHost: localhost\r\n" + headers + id_header(id) + "\r\n" + get("/health"));
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer) << headers;
    EXPECT_EQ(answer->status, 400) << headers;
    EXPECT_EQ(error_kind(*answer), "parse");
    EXPECT_EQ(answer->header("connection"), "close");
    EXPECT_EQ(answer->header("x-request-id"), id.str());
    EXPECT_TRUE(client.at_end()) << "nothing after it is a request";
  }
}

TEST(LiveHttp, MalformedHeadsAreAnsweredAndClose) {
  LiveGateway live;
  for (const std::string& wire :
       {std::string("GET /health HTTP/1.1\nHost: localhost\n\n"), std::string("\x16\x03\x01 hello\n"),
        std::string("GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n"), std::string("GET /health HTTP/1.1\r\n\r\n"),
        std::string("GET /health HTTP/1.1\r\nHost: localhost\r\nA: b") + '\0' + "\r\n\r\n",
        "GET /" + std::string(limits::kHeadBytesMax, 'x')}) {
    RawClient client = live.client();
    client.send(wire);
    const auto answer = client.read_answer();
    ASSERT_TRUE(answer) << wire.substr(0, 50);
    EXPECT_EQ(answer->status, 400);
    EXPECT_EQ(error_kind(*answer), "parse");
    EXPECT_TRUE(client.at_end());
  }
}

TEST(LiveHttp, ARequestThatEndsEarlyIsAnswered) {
  LiveGateway live;
  for (const std::string wire : {"GET /hea",
                                 "POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; "
                                 "boundary=x\r\nContent-Length: 10\r\n\r\nabc"}) {
    RawClient client = live.client();
    client.send(wire);
    client.close_sending();
    EXPECT_EQ(client.read_answer()->status, 400);
    EXPECT_TRUE(client.at_end());
  }
}

TEST(LiveHttp, OtherSitesAreForbidden) {
  GatewayConfig config;
  config.allowed_hosts = {"gpu.example"};
  LiveGateway live(config);
  RawClient client = live.client();
  const auto status = [&client](std::string_view host, std::string_view more = "") {
    client.send(fmt::format("GET /health HTTP/1.1\r\nHost: {}\r\n{}\r\n", host, more));
    const auto answer = client.read_answer();
    EXPECT_TRUE(answer);
    if (answer->status == 403) {
      EXPECT_EQ(error_kind(*answer), "forbidden");
    }
    return answer->status;
  };
  EXPECT_EQ(status("evil.example"), 403);
  EXPECT_EQ(status("localhost", "Origin: http://evil.example\r\n"), 403);
  EXPECT_EQ(status("localhost", "Origin: null\r\n"), 403);
  EXPECT_EQ(status("localhost:1", "Origin: http://localhost:1\r\n"), 200);
  EXPECT_EQ(status("gpu.example"), 200);
  EXPECT_EQ(status("127.0.0.1:9"), 200);
}

TEST(LiveHttp, AcceptedSocketsAreNotInherited) {
  LiveGateway live;
  RawClient client = live.client();
  client.send(get("/health"));
  ASSERT_TRUE(client.read_answer());
  for (int fd = 3; fd < 200; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    int type = 0;
    socklen_t length = sizeof(type);
    if (flags < 0 || ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0) continue;
    EXPECT_TRUE(flags & FD_CLOEXEC) << "socket " << fd;
  }
}

TEST(LiveHttp, AnAddressThatCannotBeBoundIsOneClearLine) {
  LiveGateway live;
  FakeStore store;
  GatewayConfig config;
  config.port = live.port();
  const auto taken = Gateway::start(config, store, Clock::system(), plain_facts());
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().kind, ErrorKind::kEnvironment);
  EXPECT_EQ(taken.error().message,
            fmt::format("cannot listen on 127.0.0.1:{}: Address already in use; choose another --host or --port",
                        live.port()));
  config.host = "no-such-host.invalid";
  const auto unknown = Gateway::start(config, store, Clock::system(), plain_facts());
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("no-such-host.invalid"), std::string::npos);
}

TEST(LiveHttp, ListensOnNamesAndEveryAddress) {
  for (const char* host : {"localhost", "0.0.0.0"}) {
    GatewayConfig config;
    config.host = host;
    LiveGateway live(config);
    RawClient client = live.client();
    client.send(get("/health"));
    EXPECT_EQ(client.read_answer()->status, 200) << host;
  }
}

TEST(LiveHttp, ListensOnIpv6) {
  FakeStore store;
  GatewayConfig config;
  config.host = "::1";
  config.port = 0;
  const auto started = Gateway::start(config, store, Clock::system(), plain_facts());
  if (!started) GTEST_SKIP() << started.error().message;
  const UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons((*started)->port());
  address.sin6_addr = in6addr_loopback;
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string request = "GET /health HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n";
  ASSERT_EQ(::send(fd.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  char answer[16] = {};
  ASSERT_EQ(::recv(fd.get(), answer, 15, MSG_WAITALL), 15);
  EXPECT_EQ(std::string(answer), "HTTP/1.1 200 OK");
}

}  // namespace
}  // namespace kcoral::gateway
