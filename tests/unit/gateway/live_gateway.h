// A gateway on a free loopback port with a fake store behind it, and the requests that tests send to it.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/sha256.h"
#include "gateway/gateway.h"
#include "tests/unit/gateway/fake_store.h"
#include "tests/unit/gateway/raw_client.h"

namespace kcoral::gateway {

inline constexpr std::string_view kProgram =
    R"({"instructions":[{"op":"upload","id":"m","kind":"module","source":"x = 1"}]})";

inline Facts plain_facts() {
  Facts known;
  known.health = [] {
    HealthFacts facts;
    facts.instance_id = "instance";
    facts.request_capacity = 1;
    facts.versions = {{"kcoral", "0.1.0"}};
    return facts;
  };
  known.gpus = [] { return std::vector<GpuFacts>(); };
  known.metrics = [] {
    MetricsFacts facts;
    facts.version = "0.1.0";
    return facts;
  };
  return known;
}

class LiveGateway {
 public:
  explicit LiveGateway(GatewayConfig config = {}, Clock& clock = Clock::system()) {
    config.port = 0;
    auto started = Gateway::start(config, store, clock, plain_facts());
    EXPECT_TRUE(started) << started.error().message;
    gateway = std::move(*started);
  }
  ~LiveGateway() { gateway.reset(); }

  uint16_t port() const { return gateway->port(); }
  RawClient client() const { return RawClient(port()); }

  FakeStore store;
  std::unique_ptr<Gateway> gateway;
};

inline std::string get(std::string_view path, std::string_view headers = "") {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, headers);
}

inline std::string part(std::string_view name, std::string_view content_type, std::string_view content) {
  return fmt::format("--frontier\r\nContent-Disposition: form-data; name=\"{}\"\r\nContent-Type: {}\r\n\r\n{}\r\n",
                     name, content_type, content);
}
inline std::string program_part(std::string_view program = kProgram) {
  return part("program", "application/json", program);
}
inline std::string blob_part(std::string_view content) {
  return part("blob:" + Sha256::of(content).hex(), "application/octet-stream", content);
}
inline std::string closing() { return "--frontier--\r\n"; }

inline std::string execute_head(std::string_view framing, std::string_view headers = "") {
  return fmt::format(
      "POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; "
      "boundary=frontier\r\n{}\r\n{}\r\n",
      framing, headers);
}
inline std::string execute(std::string_view body, std::string_view headers = "") {
  return execute_head(fmt::format("Content-Length: {}", body.size()), headers) + std::string(body);
}
inline std::string execute_program(std::string_view headers = "") {
  return execute(program_part() + closing(), headers);
}

/// A program that uploads `content` as bytes, with its blob.
inline std::string bytes_program(std::string_view content) {
  return program_part(fmt::format(R"({{"instructions":[{{"op":"upload","id":"b","kind":"bytes","blob":"{}"}}]}})",
                                  Sha256::of(content).hex()));
}

inline std::string id_header(const Uuid& id) { return fmt::format("X-Request-ID: {}\r\n", id.str()); }

/// The kind in an error body; what the body lacks shows in the text.
inline std::string error_kind(const RawAnswer& answer) {
  const auto body = nlohmann::json::parse(answer.body, nullptr, false);
  if (!body.is_object() || body.value("status", "") != "ERROR") return "no error body: " + answer.body;
  if (body.value("request_id", "") != answer.header("x-request-id")) return "another id than the header's";
  return body["error"].value("kind", "no kind");
}

}  // namespace kcoral::gateway
