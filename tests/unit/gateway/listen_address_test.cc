#include "gateway/listen_address.h"

#include <gtest/gtest.h>

namespace kcoral::gateway {
namespace {

TEST(Loopback, KnowsAddressesAndNames) {
  for (const char* host : {"localhost", "a.localhost", "127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback_host(host)) << host;
  }
  for (const char* host : {"", "evillocalhost", "128.0.0.1", "127.1", "::", "::2", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(is_loopback_host(host)) << host;
  }
}

TEST(ListenAddress, SaysWhetherItIsLoopback) {
  for (const auto& [host, literal, loopback] :
       std::vector<std::tuple<std::string, std::string, bool>>{{"127.0.0.1", "127.0.0.1", true},
                                                               {"127.7.7.7", "127.7.7.7", true},
                                                               {"0.0.0.0", "0.0.0.0", false},
                                                               {"::1", "[::1]", true},
                                                               {"::", "[::]", false},
                                                               {"::ffff:127.0.0.1", "[::ffff:127.0.0.1]", true}}) {
    const auto address = ListenAddress::resolve(host, 1);
    ASSERT_TRUE(address) << host;
    EXPECT_EQ(address->literal, literal);
    EXPECT_EQ(address->loopback, loopback) << host;
  }
}

}  // namespace
}  // namespace kcoral::gateway
