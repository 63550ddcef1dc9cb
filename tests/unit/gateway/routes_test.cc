#include "gateway/routes.h"

#include <gtest/gtest.h>

namespace kcoral::gateway {
namespace {

TEST(RouteTree, FindsFixedAndVariableSegments) {
  RouteTree tree;
  tree.add("/", 0);
  tree.add("/requests", 1);
  tree.add("/requests/:id", 2);
  tree.add("/requests/:id/artifacts/:key", 3);
  EXPECT_EQ(tree.find("/"), 0u);
  EXPECT_EQ(tree.find("/requests"), 1u);
  EXPECT_EQ(tree.find("/requests/7"), 2u);
  EXPECT_EQ(tree.find("/requests/7/artifacts/k"), 3u);
}

TEST(RouteTree, IsExactAboutSlashes) {
  RouteTree tree;
  tree.add("/requests/:id", 1);
  tree.add("/health", 2);
  for (const char* path : {"", "*", "/", "/requests", "/requests/", "/requests/7/", "//requests/7", "/requests//7",
                           "/health/", "health", "/healthy", "/requests/7/8", "/:id", "/requests//"}) {
    EXPECT_FALSE(tree.find(path)) << path;
  }
}

TEST(Routes, TellsUnknownPathsFromWrongMethods) {
  Routes routes;
  routes.add("POST", "/execute", Endpoint::kExecute);
  routes.add("GET", "/health", Endpoint::kHealth);
  EXPECT_EQ(std::get<Routes::Match>(routes.match("POST", "/execute")).endpoint, Endpoint::kExecute);
  EXPECT_EQ(std::get<Routes::Match>(routes.match("HEAD", "/health")).endpoint, Endpoint::kHealth);
  EXPECT_TRUE(std::holds_alternative<Routes::NotFound>(routes.match("GET", "/execute/")));
  EXPECT_EQ(std::get<Routes::MethodNotAllowed>(routes.match("BREW", "/execute")).allow, "POST");
  EXPECT_EQ(std::get<Routes::MethodNotAllowed>(routes.match("post", "/health")).allow, "GET, HEAD");
}

}  // namespace
}  // namespace kcoral::gateway
