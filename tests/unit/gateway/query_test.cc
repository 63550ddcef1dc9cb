#include "gateway/query.h"

#include <gtest/gtest.h>

namespace kcoral::gateway {
namespace {

TEST(Percent, DecodesUtf8) {
  EXPECT_EQ(percent_decode(""), "");
  EXPECT_EQ(percent_decode("a+b"), "a+b");
  EXPECT_EQ(percent_decode("a%2Fb%2fc%20d"), "a/b/c d");
  EXPECT_EQ(percent_decode("%C3%A4"), "\u00e4");
  EXPECT_EQ(percent_decode("%00"), std::string(1, '\0'));
  EXPECT_EQ(percent_decode("100%25"), "100%");
}

TEST(Percent, RefusesTheRest) {
  for (const char* text : {"%", "%2", "a%", "%g0", "%0g", "%-1", "% 1", "%ff", "%C3", "%ED%A0%80"}) {
    EXPECT_FALSE(percent_decode(text)) << text;
  }
}

TEST(Percent, WhatIsEncodedIsDecodedAgain) {
  EXPECT_EQ(percent_encode("aZ09-._~"), "aZ09-._~");
  EXPECT_EQ(percent_encode("a/b ?#%&=+"), "a%2Fb%20%3F%23%25%26%3D%2B");
  std::string all;
  for (char c = 1; c != 127; ++c) all += c;
  all += "\u00e4\u20ac";
  EXPECT_EQ(percent_decode(percent_encode(all)), all);
}

TEST(Query, HasNamesAndValues) {
  const auto query = Query::parse("a=1&b=x%3Dy=z&c&&d=a+b%2B&", {"a", "b", "c", "d", "e"});
  ASSERT_TRUE(query) << query.error().message;
  EXPECT_EQ(query->value("a"), "1");
  EXPECT_EQ(query->value("b"), "x=y=z");
  EXPECT_EQ(query->value("c"), "");
  EXPECT_EQ(query->value("d"), "a b+");
  EXPECT_FALSE(query->value("e"));
  EXPECT_TRUE(Query::parse("", {}));
}

TEST(Query, SaysWhatIsAccepted) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"limit=1&state=queued&x=1", "unknown query parameter \"x\": this path takes state, limit"},
           {"State=queued", "unknown query parameter \"State\""},
           {"=1", "unknown query parameter \"\""},
           {"limit=1&limit=1", "\"limit\" was sent twice"},
           {"limit=1&%6Cimit=2", "\"limit\" was sent twice"},
           {"state=%ff", "not percent-encoded UTF-8"},
           {"state=%f", "not percent-encoded UTF-8"}}) {
    const auto query = Query::parse(text, {"state", "limit"});
    ASSERT_FALSE(query) << text;
    EXPECT_EQ(query.error().kind, ErrorKind::kParse);
    EXPECT_NE(query.error().message.find(part), std::string::npos) << query.error().message;
  }
  EXPECT_NE(Query::parse("a", {}).error().message.find("takes no query parameters"), std::string::npos);
}

}  // namespace
}  // namespace kcoral::gateway
