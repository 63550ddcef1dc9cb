// A live gateway, and a client that submits to it and asks what has become of that.
#pragma once

#include "tests/unit/gateway/live_gateway.h"

namespace kcoral::gateway {

inline std::string enqueue(std::string_view body, std::string_view headers = "") {
  return fmt::format(
      "POST /requests HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=frontier\r\n"
      "Content-Length: {}\r\n{}\r\n{}",
      body.size(), headers, body);
}
inline std::string enqueue_program(std::string_view headers = "") {
  return enqueue(program_part() + closing(), headers);
}
inline std::string remove(std::string_view path, std::string_view headers = "") {
  return fmt::format("DELETE {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers);
}

class LiveRequests : public ::testing::Test {
 protected:
  std::string path() const { return "/requests/" + id.str(); }
  /// Submits a program under `id`, which stays queued.
  void submit() {
    RawClient submitting = live.client();
    submitting.send(enqueue_program(id_header(id)));
    ASSERT_EQ(submitting.read_answer()->status, 202);
  }
  RawAnswer ask(std::string_view request) {
    client.send(request);
    auto answer = client.read_answer();
    EXPECT_TRUE(answer) << request;
    return answer.value_or(RawAnswer());
  }

  LiveGateway live;
  RawClient client = live.client();
  const Uuid id = Uuid::random();
};

}  // namespace kcoral::gateway
