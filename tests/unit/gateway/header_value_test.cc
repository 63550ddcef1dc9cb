#include "gateway/header_value.h"

#include <gtest/gtest.h>

namespace kcoral::gateway {
namespace {

TEST(HeaderValue, ReadsTokensAndQuotedStrings) {
  const auto parsed = parse_header_value("Form-Data ; NAME=\"a \\\"b\\\"; c\" ;filename=x.txt; flag; size = 3");
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->value, "form-data");
  EXPECT_EQ(*parsed->parameter("name"), "a \"b\"; c");
  EXPECT_EQ(*parsed->parameter("filename"), "x.txt");
  EXPECT_EQ(*parsed->parameter("size"), "3");
  EXPECT_EQ(parsed->parameter("flag"), nullptr);
}

TEST(HeaderValue, AcceptsEmptyParameters) {
  EXPECT_TRUE(parse_header_value("text/plain;"));
  EXPECT_TRUE(parse_header_value("text/plain; ;"));
  EXPECT_EQ(*parse_header_value("a; name=\"\"")->parameter("name"), "");
}

TEST(HeaderValue, RefusesWhatIsAmbiguous) {
  for (const char* text : {"", ";a=b", "a; name=\"open", "a; name=\"x\"y", "a; name=1; NAME=2"}) {
    EXPECT_FALSE(parse_header_value(text)) << text;
  }
}

}  // namespace
}  // namespace kcoral::gateway
