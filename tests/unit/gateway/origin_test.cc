#include "gateway/origin.h"

#include <gtest/gtest.h>

namespace kcoral::gateway {
namespace {

RequestHead head(const char* host, const char* origin = nullptr) {
  RequestHead result;
  if (host != nullptr) result.headers.push_back({"host", host});
  if (origin != nullptr) result.headers.push_back({"origin", origin});
  return result;
}

TEST(Origin, OnLoopbackTheHostMustBeLoopback) {
  const OriginPolicy policy("127.0.0.1", true, {"gpu.example", "other.example:9000"});
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "localhost.", "a.localhost:1", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000",
        "[::1]", "[::ffff:127.0.0.1]", "gpu.example", "GPU.example:80", "other.example:9000"}) {
    EXPECT_TRUE(policy.check(head(host))) << host;
  }
  EXPECT_TRUE(policy.check(head(nullptr))) << "HTTP/1.0 without Host";
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
                           "0.0.0.0", "[::2]", "[::1", "localhost:x", "127.1", "other.example", "other.example:9001",
                           "evillocalhost", "localhost:8000@evil.example", "::1"}) {
    const auto checked = policy.check(head(host));
    ASSERT_FALSE(checked) << host;
    EXPECT_EQ(checked.error().kind, ErrorKind::kForbidden);
  }
}

TEST(Origin, ElsewhereAnyHostWillDo) {
  const OriginPolicy policy("0.0.0.0", false, {});
  EXPECT_TRUE(policy.check(head("gpu7.cluster:8000")));
}

TEST(Origin, OnlyTheServersOwnOriginPasses) {
  const OriginPolicy policy("0.0.0.0", false, {"gpu.example"});
  for (const auto& [host, origin] :
       std::vector<std::pair<const char*, const char*>>{{"10.0.0.1:8000", "http://10.0.0.1:8000"},
                                                        {"localhost:8000", "HTTP://LocalHost:8000"},
                                                        {"[::1]:80", "http://[::1]:80"},
                                                        {"gpu.example", "https://gpu.example"}}) {
    EXPECT_TRUE(policy.check(head(host, origin))) << origin;
  }
  for (const auto& [host, origin] :
       std::vector<std::pair<const char*, const char*>>{{"10.0.0.1:8000", "http://evil.example"},
                                                        {"10.0.0.1:8000", "null"},
                                                        {"10.0.0.1:8000", ""},
                                                        {"10.0.0.1:8000", "http://10.0.0.1:8001"},
                                                        {"10.0.0.1:8000", "http://10.0.0.1"},
                                                        {"10.0.0.1:8000", "ftp://10.0.0.1:8000"},
                                                        {"10.0.0.1:8000", "http://10.0.0.1:8000/x"},
                                                        {"rebound.example:8000", "http://rebound.example:8000"}}) {
    EXPECT_FALSE(policy.check(head(host, origin))) << origin;
  }
  EXPECT_FALSE(policy.check(head(nullptr, "http://10.0.0.1:8000")));
  RequestHead doubled = head("10.0.0.1:8000", "http://10.0.0.1:8000");
  doubled.headers.push_back({"origin", "http://10.0.0.1:8000"});
  EXPECT_FALSE(policy.check(doubled));
}

}  // namespace
}  // namespace kcoral::gateway
