#include "schema/value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schema/limits.h"

namespace kcoral::schema {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::shared_ptr<const SealedMemory> memory(std::string_view content) {
  auto sealed = SealedMemory::copy_of(content);
  KCORAL_CHECK(sealed);
  return *sealed;
}

/// One memory that the pieces fill one after another.
std::vector<Extent> pieces(const std::vector<std::string_view>& contents) {
  std::string all;
  for (const std::string_view content : contents) all += content;
  const auto shared = memory(all);
  std::vector<Extent> extents;
  uint64_t offset = 0;
  for (const std::string_view content : contents) {
    extents.push_back({shared, offset, content.size()});
    offset += content.size();
  }
  return extents;
}

std::string sha(std::string_view content) { return Sha256::of(content).hex(); }

std::string wire(std::string_view text, const std::vector<Extent>& extents = {}) {
  std::vector<Part> parts;
  const auto value = wire_value(text, extents, parts);
  if (!value) return value.error().message;
  EXPECT_EQ(parts.size(), extents.size());
  return *value;
}

/// Why it was refused; checks that nothing was appended.
std::string refused(std::string_view text, const std::vector<Extent>& extents = {}) {
  std::vector<Part> parts(2);
  const auto value = wire_value(text, extents, parts);
  EXPECT_EQ(parts.size(), 2U);
  if (value) return "accepted";
  EXPECT_EQ(value.error().kind, ErrorKind::kEngine);
  return value.error().message;
}

TEST(WireValueTest, ScalarsKeepTheirExactSpelling) {
  for (const std::string_view text : {
           R"({"type":"null"})",
           R"({"type":"boolean","value":true})",
           R"({"type":"boolean","value":false})",
           R"({"type":"integer","value":42})",
           R"({"type":"integer","value":-123456789012345678901234567890123456789012345678901234567890})",
           R"({"type":"number","value":3.14})",
           R"({"type":"number","value":-0.0})",
           R"({"type":"number","value":1e+16})",
           R"({"type":"number","value":5e-324})",
           R"({"type":"string","value":""})",
           R"({"type":"string","value":"a\u00e9\ud83d\ude00é\n"})",
           R"({"type":"array","value":[]})",
           R"({"type":"object","value":{}})",
       }) {
    EXPECT_EQ(wire(text), text);
  }
}

TEST(WireValueTest, WhiteSpaceIsLeftOut) {
  EXPECT_EQ(wire(" { \"type\" : \"array\" , \"value\" : [ { \"type\" : \"null\" } , { \"type\":\"integer\",\"value\": "
                 "1 } ] } "),
            R"({"type":"array","value":[{"type":"null"},{"type":"integer","value":1}]})");
}

TEST(WireValueTest, ContainersKeepTheirOrder) {
  const std::string_view text = R"({"type":"object","value":{"b":{"type":"null"},"":{"type":"array","value":[)"
                                R"({"type":"string","value":"x"},{"type":"null"}]},)"
                                R"("a\n":{"type":"object","value":{"b":{"type":"null"}}}}})";
  EXPECT_EQ(wire(text), text);
  EXPECT_EQ(wire(R"({"type":"object","value":{"\u0062":{"type":"null"}}})"),
            R"({"type":"object","value":{"b":{"type":"null"}}})");
}

TEST(WireValueTest, PartsGetDigestsAndNumbersThatGoOn) {
  std::vector<Part> parts;
  const auto first = wire_value(R"({"type":"bytes","part":0})", pieces({"abc"}), parts);
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, fmt::format(R"({{"type":"bytes","part":"return:0","sha256":"{}"}})", sha("abc")));

  const auto extents = pieces({"", "0123456789ab"});
  const auto second = wire_value(R"({"type":"array","value":[{"type":"bytes","part":0},)"
                                 R"({"type":"tensor","dtype":"float16","shape":[2,3],"part":1}]})",
                                 extents, parts);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(*second,
            fmt::format(R"({{"type":"array","value":[{{"type":"bytes","part":"return:1","sha256":"{}"}},)"
                        R"({{"type":"tensor","dtype":"float16","shape":[2,3],"part":"return:2","sha256":"{}"}}]}})",
                        sha(""), sha("0123456789ab")));
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[2].sha256, Sha256::of("0123456789ab"));
  EXPECT_EQ(parts[2].extent.memory, extents[1].memory);
  EXPECT_EQ(parts[2].extent.offset, 0U);
  EXPECT_EQ(parts[2].extent.length, 12U);
}

TEST(WireValueTest, Files) {
  EXPECT_EQ(wire(R"({"type":"file","size":3,"part":0})", pieces({"abc"})),
            fmt::format(R"({{"type":"file","size":3,"part":"return:0","sha256":"{}"}})", sha("abc")));
  EXPECT_THAT(refused(R"({"type":"file","size":2,"part":0})", pieces({"abc"})),
              HasSubstr("part 0 has 3 bytes; its value takes 2"));
  EXPECT_THAT(refused(R"({"type":"file","size":-3,"part":0})", pieces({"abc"})), HasSubstr("is no size"));
  EXPECT_THAT(refused(R"({"type":"file","size":3.0,"part":0})", pieces({"abc"})), HasSubstr("is no size"));
  EXPECT_THAT(refused(R"({"type":"file","part":0})", pieces({"abc"})), HasSubstr("unexpected field \"part\""));
}

TEST(WireValueTest, Tensors) {
  const auto tensor = [](std::string_view dtype, std::string_view shape) {
    return fmt::format(R"({{"type":"tensor","dtype":"{}","shape":{},"part":0}})", dtype, shape);
  };
  const auto eight = pieces({"12345678"});
  EXPECT_THAT(wire(tensor("float64", "[]"), eight), HasSubstr(R"("shape":[],"part":"return:0")"));
  EXPECT_THAT(wire(tensor("complex64", "[1, 1]"), eight), HasSubstr(R"("shape":[1,1],"part":"return:0")"));
  EXPECT_THAT(wire(tensor("bool", "[8]"), eight), HasSubstr(R"("dtype":"bool","shape":[8])"));
  EXPECT_THAT(wire(tensor("int64", "[3,0]"), pieces({""})), HasSubstr(R"("shape":[3,0])"));
  EXPECT_THAT(refused(tensor("float32", "[3]"), eight), HasSubstr("part 0 has 8 bytes; its value takes 12"));
  EXPECT_THAT(refused(tensor("float31", "[2]"), eight), HasSubstr("unknown dtype \"float31\""));
  EXPECT_THAT(refused(tensor("float32", "[2.0]"), eight), HasSubstr("is no dimension"));
  EXPECT_THAT(refused(tensor("float32", "[-2]"), eight), HasSubstr("is no dimension"));
  EXPECT_THAT(refused(tensor("float32", "[9223372036854775808]"), eight), HasSubstr("is no dimension"));
  EXPECT_THAT(refused(tensor("float32", "2"), eight), HasSubstr("expected an array"));
  EXPECT_THAT(refused(tensor("float32", "[4611686018427387904,4]"), eight), HasSubstr("overflows 63 bits"));
  std::string ones = "[8";
  for (size_t i = 1; i < limits::kTensorDimensionsMax; ++i) ones += ",1";
  EXPECT_THAT(wire(tensor("int8", ones + "]"), eight), StartsWith("{"));
  EXPECT_THAT(refused(tensor("int8", ones + ",1]"), eight), HasSubstr("too many dimensions"));
}

std::string folder(std::string_view files, std::string_view directories) {
  return fmt::format(R"({{"type":"folder","files":{},"directories":{}}})", files, directories);
}

TEST(WireValueTest, Folders) {
  EXPECT_EQ(wire(folder("{}", "[]")), folder("{}", "[]"));
  EXPECT_EQ(wire(folder("{}", R"(["a","a/b","empty"])")), folder("{}", R"(["a","a/b","empty"])"));
  const auto file = [](int part, std::string_view content) {
    return fmt::format(R"({{"type":"file","size":{},"part":"return:{}","sha256":"{}"}})", content.size(), part,
                       sha(content));
  };
  // Sorted by bytes, in which "a.txt" stands before "a/b" and upper case before lower.
  EXPECT_EQ(wire(folder(R"({"Z":{"type":"file","size":1,"part":0},"a.txt":{"type":"file","size":2,"part":1},)"
                        R"("a/.b":{"type":"file","size":0,"part":2},"é":{"type":"file","size":3,"part":3}})",
                        R"(["a","a-"])"),
                 pieces({"1", "22", "", "333"})),
            folder(fmt::format(R"({{"Z":{},"a.txt":{},"a/.b":{},"é":{}}})", file(0, "1"), file(1, "22"), file(2, ""),
                               file(3, "333")),
                   R"(["a","a-"])"));
}

TEST(WireValueTest, FoldersAreSortedListEveryAncestorAndHoldOnlyFiles) {
  const auto one = [](std::string_view path) {
    return fmt::format(R"({{"{}":{{"type":"file","size":0,"part":0}}}})", path);
  };
  const auto two = [](std::string_view first, std::string_view second) {
    return fmt::format(R"({{"{}":{{"type":"file","size":0,"part":0}},"{}":{{"type":"file","size":0,"part":1}}}})",
                       first, second);
  };
  const auto empty = pieces({""});
  const auto empties = pieces({"", ""});
  EXPECT_THAT(refused(folder(two("b", "a"), "[]"), empties), HasSubstr("the path \"a\" is not in order"));
  EXPECT_THAT(refused(folder(two("a", "a"), "[]"), empties), HasSubstr("the key \"a\" is doubled"));
  EXPECT_THAT(refused(folder("{}", R"(["b","a"])")), HasSubstr("the path \"a\" is not in order"));
  EXPECT_THAT(refused(folder("{}", R"(["a","a"])")), HasSubstr("the path \"a\" is not in order"));
  EXPECT_THAT(refused(folder(one("a/b"), "[]"), empty), HasSubstr("the directory of \"a/b\" is not listed"));
  EXPECT_THAT(refused(folder(one("a/b/c"), R"(["a/b"])"), empty), HasSubstr("the directory of \"a/b\" is not listed"));
  EXPECT_THAT(refused(folder(one("a/b/c"), R"(["a"])"), empty), HasSubstr("the directory of \"a/b/c\" is not listed"));
  EXPECT_THAT(refused(folder("{}", R"(["a/b"])")), HasSubstr("the directory of \"a/b\" is not listed"));
  EXPECT_THAT(refused(folder(one("a"), R"(["a"])"), empty), HasSubstr("\"a\" is a file and a directory"));
  EXPECT_THAT(refused(folder(one("a"), R"(["a/b"])"), empty), HasSubstr("the directory of \"a/b\" is not listed"));
  EXPECT_THAT(refused(folder(one("./a"), "[]"), empty), HasSubstr("not in normal form"));
  EXPECT_THAT(refused(folder(one("/a"), "[]"), empty), HasSubstr("is absolute"));
  EXPECT_THAT(refused(folder(one("../a"), "[]"), empty), HasSubstr("has a .. component"));
  EXPECT_THAT(refused(folder(one(""), "[]"), empty), HasSubstr("is empty"));
  EXPECT_THAT(refused(folder("{}", R"([""])")), HasSubstr("is empty"));
  EXPECT_THAT(refused(folder("{}", R"(["a/"])")), HasSubstr("not in normal form"));
  EXPECT_THAT(refused(folder("{}", R"(["a",5])")), HasSubstr("expected a string"));
  EXPECT_THAT(refused(folder(R"({"a":{"type":"bytes","part":0}})", "[]"), empty),
              HasSubstr("\"a\" in a folder is no file"));
  EXPECT_THAT(refused(folder(R"({"a":{"type":"folder","files":{},"directories":[]}})", "[]")), HasSubstr("is no file"));
  EXPECT_THAT(refused(folder("[]", "[]")), HasSubstr("expected an object"));
}

TEST(WireValueTest, FieldsAreExactlyThoseOfTheKindInTheirOrder) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {R"({})", "a value without \"type\""},
      {R"([])", "expected an object, found an array"},
      {R"(null)", "expected an object, found null"},
      {R"({"type":5})", "expected a string"},
      {R"({"type":"set","value":[]})", "unknown type \"set\""},
      {R"({"type":"Null"})", "unknown type \"Null\""},
      {R"({"value":1,"type":"integer"})", "begins with \"value\" instead of \"type\""},
      {R"({"type":"integer"})", "no field \"value\" in a value of type integer"},
      {R"({"type":"null","value":null})", "unexpected field \"value\" in a value of type null"},
      {R"({"type":"integer","value":1,"extra":2})", "unexpected field \"extra\" in a value of type integer"},
      {R"({"type":"integer","value":1,"value":2})", "the key \"value\" is doubled"},
      {R"({"type":"integer","type":"null"})", "the key \"type\" is doubled"},
      {R"({"type":"bytes","part":0,"sha256":""})", "unexpected field \"sha256\""},
      {R"({"type":"file","part":0,"size":0})", "unexpected field \"part\" in a value of type file"},
      {R"({"type":"tensor","shape":[],"dtype":"int8","part":0})", "unexpected field \"shape\""},
      {R"({"type":"tensor","dtype":"int8","shape":[]})", "no field \"part\" in a value of type tensor"},
      {R"({"type":"folder","files":{}})", "no field \"directories\""},
      {R"({"type":"folder","directories":[],"files":{}})", "unexpected field \"directories\""},
      {R"({"type":"boolean","value":1})", "expected a boolean, found an integer"},
      {R"({"type":"integer","value":1.0})", "expected an integer, found a number"},
      {R"({"type":"integer","value":true})", "expected an integer, found a boolean"},
      {R"({"type":"integer","value":"1"})", "expected an integer, found a string"},
      {R"({"type":"number","value":"1"})", "expected a number, found a string"},
      {R"({"type":"number","value":NaN})", "expected a value"},
      {R"({"type":"number","value":Infinity})", "expected a value"},
      {R"({"type":"number","value":1e400})", "finite"},
      {R"({"type":"string","value":null})", "expected a string, found null"},
      {R"({"type":"string","value":"\ud800"})", "unpaired surrogate"},
      {"{\"type\":\"string\",\"value\":\"\xff\"}", "not UTF-8"},
      {R"({"type":"array","value":{}})", "expected an array, found an object"},
      {R"({"type":"array","value":[1]})", "expected an object, found an integer"},
      {R"({"type":"object","value":[]})", "expected an object, found an array"},
      {R"({"type":"object","value":{"a":{"type":"null"},"a":{"type":"null"}}})", "the key \"a\" is doubled"},
      {R"({"type":"null"}{"type":"null"})", "expected the end of the text"},
      {R"({"type":"null")", "expected ',' or '}'"},
      {R"()", "the end of the text"},
  };
  for (const auto& [text, why] : cases) {
    const std::string message = refused(text, pieces({""}));
    EXPECT_THAT(message, StartsWith("the runtime sent a malformed value: ")) << text;
    EXPECT_THAT(message, HasSubstr(why)) << text;
  }
}

TEST(WireValueTest, ANumberBeyondDoublesIsRefusedInAnySpelling) {
  EXPECT_THAT(refused("{\"type\":\"number\",\"value\":1" + std::string(400, '0') + "}"), HasSubstr("not finite"));
  EXPECT_EQ(wire(R"({"type":"number","value":3})"), R"({"type":"number","value":3})");
}

TEST(WireValueTest, EachPieceIsUsedOnceAndInOrder) {
  const std::string_view two = R"({"type":"array","value":[{"type":"bytes","part":0},{"type":"bytes","part":1}]})";
  EXPECT_THAT(wire(two, pieces({"a", "b"})), StartsWith("{"));
  EXPECT_THAT(refused(two, pieces({"a"})), HasSubstr("it has 1 parts but uses more"));
  EXPECT_THAT(refused(two, pieces({"a", "b", "c"})), HasSubstr("it has 3 parts but uses 2"));
  EXPECT_THAT(refused(R"({"type":"null"})", pieces({"a"})), HasSubstr("it has 1 parts but uses 0"));
  EXPECT_THAT(refused(R"({"type":"bytes","part":1})", pieces({"a", "b"})), HasSubstr("part \"1\" where 0 comes next"));
  EXPECT_THAT(
      refused(R"({"type":"array","value":[{"type":"bytes","part":0},{"type":"bytes","part":0}]})", pieces({"a", "b"})),
      HasSubstr("part \"0\" where 1 comes next"));
  for (const std::string_view part : {"-1", "0.0", "18446744073709551616", "1e0"}) {
    EXPECT_THAT(refused(fmt::format(R"({{"type":"bytes","part":{}}})", part), pieces({"a"})), HasSubstr("comes next"));
  }
  EXPECT_THAT(refused(R"({"type":"bytes","part":"return:0"})", pieces({"a"})), HasSubstr("expected a number"));
}

TEST(WireValueTest, PiecesLieInsideTheirMemory) {
  const std::string_view text = R"({"type":"bytes","part":0})";
  const auto three = memory("abc");
  EXPECT_THAT(wire(text, {{three, 3, 0}}), HasSubstr(sha("")));
  EXPECT_THAT(wire(text, {{three, 1, 2}}), HasSubstr(sha("bc")));
  EXPECT_THAT(refused(text, {{three, 1, 3}}), HasSubstr("is not inside its memory of 3 bytes"));
  EXPECT_THAT(refused(text, {{three, 4, 0}}), HasSubstr("is not inside its memory"));
  EXPECT_THAT(refused(text, {{three, UINT64_MAX, 2}}), HasSubstr("is not inside its memory"));
  EXPECT_THAT(refused(text, {{three, 2, UINT64_MAX}}), HasSubstr("is not inside its memory"));
  EXPECT_THAT(refused(text, {{nullptr, 0, 0}}), HasSubstr("part 0 has no memory"));
}

TEST(WireValueTest, PiecesTogetherAreNoLongerThanTheirMemory) {
  const std::string_view two = R"({"type":"array","value":[{"type":"bytes","part":0},{"type":"bytes","part":1}]})";
  const auto three = memory("abc");
  EXPECT_THAT(refused(two, {{three, 0, 2}, {three, 1, 2}}), HasSubstr("overlap"));
  EXPECT_THAT(wire(two, {{three, 2, 1}, {three, 0, 2}}), HasSubstr(sha("ab")));
  EXPECT_THAT(wire(two, {{three, 0, 3}, {memory("xyz"), 0, 3}}), HasSubstr(sha("xyz")));
}

TEST(WireValueTest, NestingOf128IsAccepted) {
  const auto nested = [](int depth, std::string_view inner) {
    std::string text;
    for (int i = 0; i < depth; ++i)
      text += i % 2 ? R"({"type":"array","value":[)" : R"({"type":"object","value":{"k":)";
    text += inner;
    for (int i = depth - 1; i >= 0; --i) text += i % 2 ? "]}" : "}}";
    return text;
  };
  const std::string_view leaf = R"({"type":"integer","value":1})";
  EXPECT_EQ(wire(nested(128, leaf)), nested(128, leaf));
  EXPECT_THAT(refused(nested(129, leaf)), HasSubstr("nested more than 128 deep"));
  EXPECT_THAT(wire(nested(128, folder(R"({"a":{"type":"file","size":0,"part":0}})", "[]")), pieces({""})),
              StartsWith("{"));
  EXPECT_THAT(wire(nested(128, R"({"type":"tensor","dtype":"int8","shape":[0],"part":0})"), pieces({""})),
              StartsWith("{"));
  EXPECT_THAT(refused(nested(100'000, leaf)), HasSubstr("deep"));
}

TEST(WireValueTest, TheNumberOfPartsIsBoundedOverAllReturns) {
  std::vector<Part> parts(limits::kPartsMax);
  const auto value = wire_value(R"({"type":"bytes","part":0})", pieces({"a"}), parts);
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().kind, ErrorKind::kEngine);
  EXPECT_THAT(value.error().message, HasSubstr("more than 65536 parts"));
  EXPECT_TRUE(wire_value(R"({"type":"null"})", {}, parts));
  parts.pop_back();
  EXPECT_TRUE(wire_value(R"({"type":"bytes","part":0})", pieces({"a"}), parts));
}

}  // namespace
}  // namespace kcoral::schema
