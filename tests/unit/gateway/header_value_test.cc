#include "gateway/header_value.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "schema/limits.h"

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

TEST(HeaderValue, BoundsTheNumberOfParameters) {
  std::string text = "a";
  for (size_t i = 0; i < limits::kMediaTypeParametersMax; ++i) text += fmt::format(";p{}=1", i);
  EXPECT_TRUE(parse_header_value(text));
  EXPECT_FALSE(parse_header_value(text + ";boundary=x"));
}

TEST(Disposition, TheNameIsReadWhateverTheFileNameIs) {
  for (const char* text :
       {R"(Form-Data; name="program"; filename="C:\dir\")", R"(form-data; filename="C:\dir\"; name="program")",
        R"(form-data; filename="C:\dir\" ; name=program)",
        R"(form-data; filename="C:\dir\"; name="program"; filename*=UTF-8''x)",
        R"(form-data; filename="a\"b; c.txt"; name="program")",
        R"(form-data; filename="a\"; name=\"other"; name="program")",
        R"(form-data; filename="a"b.txt"; name="program")", R"(form-data; name="program"; filename="unfinished)",
        R"(form-data; name="program"; filename=a; filename=b)", R"(form-data; name="pro\gram"; filename="")"}) {
    const auto parsed = parse_disposition(text);
    ASSERT_TRUE(parsed) << text;
    EXPECT_EQ(parsed->value, "form-data");
    ASSERT_TRUE(parsed->parameter("name")) << text;
    EXPECT_EQ(*parsed->parameter("name"), "program") << text;
  }
}

TEST(Disposition, RefusesADoubtfulName) {
  for (const char* text : {"", ";name=a", "form-data; name=\"open", "form-data; name=\"x\"y",
                           "form-data; name=1; NAME=2", "form-data; name=1; filename=\"C:\\\"; name=2"}) {
    EXPECT_FALSE(parse_disposition(text)) << text;
  }
}

TEST(MediaType, ParametersAreIgnored) {
  EXPECT_EQ(media_type_of("Application/JSON ; charset=\"open"), "application/json");
  EXPECT_EQ(media_type_of(""), "");
}

}  // namespace
}  // namespace kcoral::gateway
