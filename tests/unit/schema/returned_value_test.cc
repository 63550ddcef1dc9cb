#include "schema/returned_value.h"

#include <gtest/gtest.h>

namespace kcoral::schema {
namespace {

class ReturnedValue : public ::testing::Test {
 protected:
  /// An answer whose `results` are `results`, and which has three parts: "one", "two2" and "".
  Answer answer(std::string_view results) const {
    return make_result_answer(
        fmt::format(R"({{"status":"COMPLETED","results":{{{}}},"stdout":"\"results\":{{}}","stderr":""}})", results),
        {{{content, 0, 3}, {}}, {{content, 3, 4}, {}}, {{content, 0, 0}, {}}});
  }
  static std::string text_of(const Extent& extent) {
    return std::string(extent.memory->view()->substr(extent.offset, extent.length));
  }

  const std::shared_ptr<const SealedMemory> content = *SealedMemory::copy_of("onetwo2");
};

TEST_F(ReturnedValue, BytesFilesAndTensorsAreTheirParts) {
  const Answer made = answer(R"("b":{"type":"bytes","part":"return:0","sha256":"00"},)"
                             R"("f":{"type":"file","size":4,"part":"return:1","sha256":"00"},)"
                             R"("t":{"type":"tensor","dtype":"uint8","shape":[0,7],"part":"return:2","sha256":"00"})");
  for (const auto& [key, text] :
       std::vector<std::pair<std::string, std::string>>{{"b", "one"}, {"f", "two2"}, {"t", ""}}) {
    const auto found = find_returned(made, key);
    ASSERT_TRUE(found) << found.error().message;
    const auto* extent = std::get_if<Extent>(&*found);
    ASSERT_NE(extent, nullptr) << key;
    EXPECT_EQ(extent->memory, content) << "not a copy";
    EXPECT_EQ(text_of(*extent), text);
  }
}

TEST_F(ReturnedValue, AFolderIsItsFilesAndDirectories) {
  const Answer made =
      answer(R"("d":{"type":"folder","files":{"a/b":{"type":"file","size":3,"part":"return:0","sha256":"00"},)"
             R"("part":{"type":"file","size":4,"part":"return:1","sha256":"00"}},"directories":["a","empty"]})");
  const auto found = find_returned(made, "d");
  ASSERT_TRUE(found) << found.error().message;
  const auto& folder = std::get<ReturnedFolder>(*found);
  EXPECT_EQ(folder.directories, (std::vector<std::string>{"a", "empty"}));
  ASSERT_EQ(folder.files.size(), 2u);
  EXPECT_EQ(folder.files[0].first, "a/b");
  EXPECT_EQ(text_of(folder.files[0].second), "one");
  EXPECT_EQ(folder.files[1].first, "part");
  EXPECT_EQ(text_of(folder.files[1].second), "two2");
}

TEST_F(ReturnedValue, TheRestIsJsonAsItIsSpelled) {
  const std::string number = R"({"type":"integer","value":123456789012345678901234567890})";
  const std::string nested =
      R"({"type":"object","value":{"type":{"type":"string","value":"folder"},"part":{"type":"bytes","part":"return:0","sha256":"00"}}})";
  const Answer made = answer(fmt::format(R"("n":{}, "o" : {} )", number, nested));
  for (const auto& [key, text] : {std::pair("n", number), std::pair("o", nested)}) {
    const auto found = find_returned(made, key);
    ASSERT_TRUE(found) << found.error().message;
    const auto* view = std::get_if<std::string_view>(&*found);
    ASSERT_NE(view, nullptr) << key;
    EXPECT_EQ(*view, text);
    EXPECT_GE(view->data(), made.document.data());
    EXPECT_LT(view->data(), made.document.data() + made.document.size());
  }
}

TEST_F(ReturnedValue, KeysAreComparedUnescaped) {
  const Answer made = answer(R"("a\u002f\"\u00e4":{"type":"null"})");
  EXPECT_TRUE(find_returned(made, "a/\"\u00e4"));
}

TEST_F(ReturnedValue, TheDeepestValueIsFound) {
  std::string deep = R"({"type":"null"})";
  for (int i = 0; i < 128; ++i) deep = fmt::format(R"({{"type":"array","value":[{}]}})", deep);
  EXPECT_TRUE(find_returned(answer(fmt::format(R"("deep":{})", deep)), "deep"));
}

TEST_F(ReturnedValue, WhatWasNotReturnedIsNotFound) {
  const Answer made = answer(R"("a":{"type":"null"})");
  for (const char* key : {"", "b", "status", "stdout", "A"}) {
    const auto found = find_returned(made, key);
    ASSERT_FALSE(found) << key;
    EXPECT_EQ(found.error().kind, ErrorKind::kNotFound);
  }
  const Answer error = make_error_answer(Uuid::random(), {ErrorKind::kTimeout, "late"});
  EXPECT_EQ(find_returned(error, "a").error().kind, ErrorKind::kNotFound);
}

TEST_F(ReturnedValue, ADocumentThatDoesNotFitIsAnEngineError) {
  for (const char* results :
       {R"("a":{"type":"bytes","part":"return:3"})", R"("a":{"type":"bytes","part":"return:"})",
        R"("a":{"type":"bytes","part":"x"})", R"("a":{"type":"bytes","part":0})", R"("a":[])",
        R"("a":{"type":"folder","files":{"f":{"type":"file","part":"return:9"}},"directories":[]})",
        R"("a":{"type":"folder","files":[],"directories":[]})"}) {
    const auto found = find_returned(answer(results), "a");
    ASSERT_FALSE(found) << results;
    EXPECT_EQ(found.error().kind, ErrorKind::kEngine) << results;
  }
  EXPECT_EQ(find_returned(make_result_answer("{", {}), "a").error().kind, ErrorKind::kEngine);
}

}  // namespace
}  // namespace kcoral::schema
