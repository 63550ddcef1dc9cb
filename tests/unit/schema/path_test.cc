#include "schema/path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "schema/limits.h"

namespace kcoral::schema {
namespace {

using ::testing::HasSubstr;

TEST(NormalisePathTest, DropsDotsAndDoubledSlashes) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"a", "a"},
      {"a/b", "a/b"},
      {"./a", "a"},
      {"a/./b", "a/b"},
      {"a//b", "a/b"},
      {"a/b/", "a/b"},
      {"a/.", "a"},
      {".hidden", ".hidden"},
      {"...", "..."},
      {"..a/b..", "..a/b.."},
      {"a b\n", "a b\n"},
      {"été/ü", "été/ü"},
      {".//./a///b/.", "a/b"},
      {"a:b*?", "a:b*?"},
  };
  for (const auto& [path, normal] : cases) {
    const auto result = normalise_path(path);
    ASSERT_TRUE(result) << path << ": " << result.error().message;
    EXPECT_EQ(*result, normal);
    EXPECT_EQ(*normalise_path(*result), *result) << "normal form is stable";
  }
}

TEST(NormalisePathTest, SaysWhatIsWrong) {
  const std::string long_component(limits::kPathComponentBytesMax + 1, 'c');
  std::string long_path;
  while (long_path.size() <= limits::kPathBytesMax) long_path += "component/";
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", "empty"},
      {".", "working directory itself"},
      {"./", "working directory itself"},
      {"/", "absolute"},
      {"/a", "absolute"},
      {"//a", "absolute"},
      {"..", ".. component"},
      {"../a", ".. component"},
      {"a/../b", ".. component"},
      {"a/..", ".. component"},
      {"a\\b", "backslash"},
      {std::string_view("a\0b", 3), "NUL"},
      {long_component, "component over 255 bytes"},
      {long_path, "over 4096 bytes"},
  };
  for (const auto& [path, why] : cases) {
    const auto result = normalise_path(path);
    ASSERT_FALSE(result) << path;
    EXPECT_EQ(result.error().kind, ErrorKind::kParse);
    EXPECT_THAT(result.error().message, HasSubstr(why));
  }
}

TEST(NormalisePathTest, BoundsAreInclusive) {
  EXPECT_TRUE(normalise_path(std::string(limits::kPathComponentBytesMax, 'c')));
  std::string path;
  while (path.size() < limits::kPathBytesMax) path += "abcdefg/";
  path.back() = 'h';
  ASSERT_EQ(path.size(), limits::kPathBytesMax);
  EXPECT_TRUE(normalise_path(path));
  EXPECT_FALSE(normalise_path("./" + path));  // the bound is on what was sent
}

TEST(NormalisePathTest, MessagesStayShortAndValid) {
  const auto result = normalise_path("/" + std::string(3000, '\xff'));
  ASSERT_FALSE(result);
  EXPECT_LT(result.error().message.size(), 300U);
}

TEST(CheckNoOverlapTest, AcceptsPathsThatOnlyLookAlike) {
  EXPECT_TRUE(check_no_overlap({}));
  EXPECT_TRUE(check_no_overlap({"a"}));
  EXPECT_TRUE(check_no_overlap({"a/b", "a/c", "a.b", "a-b/c", "ab", "a0"}));
}

TEST(CheckNoOverlapTest, RefusesTheSamePathTwice) {
  const auto status = check_no_overlap({"b", "a/x", "b"});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kParse);
  EXPECT_EQ(status.error().message, "the path \"b\" is named twice");
}

TEST(CheckNoOverlapTest, RefusesADirectoryOfAnotherWhateverStandsBetweenThem) {
  // "a.c" and "a-b" sort between "a" and "a/d" by plain bytes.
  const auto status = check_no_overlap({"a/d", "a.c", "a-b", "a"});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "the path \"a\" is a directory of \"a/d\"");
  EXPECT_FALSE(check_no_overlap({"x/y", "x/y/z/w"}));
}

TEST(FindOverlapTest, AgreesWithComparingAllPairs) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> paths(1 + random() % 5);
    for (std::string& path : paths) {
      path = "a";
      for (size_t i = random() % 4; i > 0; --i) {
        const char c = "a.-/0"[random() % 5];
        path += c == '/' && path.back() == '/' ? 'a' : c;
      }
      if (path.back() == '/') path += 'b';
    }
    bool overlaps = false;
    for (size_t i = 0; i < paths.size(); ++i) {
      for (size_t j = 0; j < paths.size(); ++j) {
        overlaps |= i != j && (paths[i] == paths[j] || paths[j].starts_with(paths[i] + "/"));
      }
    }
    const std::vector<std::string_view> views(paths.begin(), paths.end());
    const auto found = find_overlap(views);
    ASSERT_EQ(found.has_value(), overlaps) << testing::PrintToString(paths);
    if (found) {
      EXPECT_NE(found->outer, found->inner);
      EXPECT_TRUE((paths[found->inner] + "/").starts_with(paths[found->outer] + "/"));
    }
  }
}

}  // namespace
}  // namespace kcoral::schema
