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
  EXPECT_EQ(tree.find("/")->index, 0u);
  EXPECT_EQ(tree.find("/requests")->index, 1u);
  EXPECT_EQ(tree.find("/requests/7")->index, 2u);
  EXPECT_EQ(tree.find("/requests/7/artifacts/k")->index, 3u);
}

TEST(RouteTree, SaysWhatVariableSegmentsStandFor) {
  using Parameters = std::vector<std::string>;
  RouteTree tree;
  tree.add("/requests", 1);
  tree.add("/requests/:id", 2);
  tree.add("/requests/:id/artifacts/:key", 3);
  EXPECT_EQ(tree.find("/requests")->parameters, Parameters());
  EXPECT_EQ(tree.find("/requests/7")->parameters, Parameters({"7"}));
  EXPECT_EQ(tree.find("/requests/7/artifacts/a%2Fb%20c")->parameters, Parameters({"7", "a%2Fb%20c"}));
  EXPECT_EQ(tree.find("/requests/:id/artifacts/:key")->parameters, Parameters({":id", ":key"}));
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
  routes.add("GET", "/requests/:id", Endpoint::kStatus);
  routes.add("DELETE", "/requests/:id", Endpoint::kCancel);
  EXPECT_EQ(std::get<Routes::Match>(routes.match("POST", "/execute")).endpoint, Endpoint::kExecute);
  EXPECT_EQ(std::get<Routes::Match>(routes.match("HEAD", "/health")).endpoint, Endpoint::kHealth);
  EXPECT_EQ(std::get<Routes::Match>(routes.match("DELETE", "/requests/7")).endpoint, Endpoint::kCancel);
  EXPECT_EQ(std::get<Routes::Match>(routes.match("GET", "/requests/7")).parameters, std::vector<std::string>{"7"});
  EXPECT_EQ(std::get<Routes::MethodNotAllowed>(routes.match("PUT", "/requests/7")).allow, "GET, HEAD, DELETE");
  EXPECT_TRUE(std::holds_alternative<Routes::NotFound>(routes.match("GET", "/execute/")));
  EXPECT_EQ(std::get<Routes::MethodNotAllowed>(routes.match("BREW", "/execute")).allow, "POST");
  EXPECT_EQ(std::get<Routes::MethodNotAllowed>(routes.match("post", "/health")).allow, "GET, HEAD");
}

}  // namespace
}  // namespace kcoral::gateway
