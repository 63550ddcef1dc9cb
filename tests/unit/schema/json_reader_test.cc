#include "schema/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace kcoral::schema {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int kDepthMax = 128;

/// The message, or "ok".
std::string check(std::string_view text, int depth_max = kDepthMax) {
  JsonReader reader(text, depth_max);
  if (auto read = reader.read_verbatim(); !read) {
    EXPECT_EQ(read.error().kind, ErrorKind::kParse);
    return read.error().message;
  }
  const auto ended = reader.expect_end();
  return ended ? "ok" : ended.error().message;
}

Result<std::string> string_in(std::string_view text) { return JsonReader(text, kDepthMax).read_string(); }

TEST(JsonReaderTest, AcceptsWhatTheGrammarHas) {
  for (const std::string_view text : {"null",
                                      "true",
                                      "false",
                                      "0",
                                      "-0",
                                      "7",
                                      "-12",
                                      "0.5",
                                      "-0.0",
                                      "1e5",
                                      "1E+05",
                                      "1.25e-3",
                                      R"("")",
                                      R"("a")",
                                      "[]",
                                      "[ ]",
                                      "{}",
                                      "{ }",
                                      "[1,2]",
                                      " \t\r\n[ 1 , [ ] , { } ]\n",
                                      R"({"a":1,"b":[{"a":2}]})",
                                      R"({"":{"":null}})",
                                      R"("\"\\\/\b\f\n\r\t\u00e9\uD83D\uDE00")",
                                      "\"\x7f \xC3\xA9 \xF0\x9F\x98\x80\"",
                                      "1e308",
                                      "-1.7976931348623157e308",
                                      "1e-400",
                                      "0e999999999999999999999",
                                      "0.00000e+400",
                                      "123456789012345678901234567890"}) {
    EXPECT_EQ(check(text), "ok") << text;
  }
}

TEST(JsonReaderTest, RefusesWhatItHasNotAndSaysWhere) {
  const std::pair<std::string_view, std::string_view> cases[] = {
      {"", "byte 0: expected a value, found the end of the text"},
      {"  ", "byte 2: expected a value, found the end of the text"},
      {"nul", "byte 0: expected a value"},
      {"nULL", "byte 0: expected a value"},
      {"True", "byte 0: expected a value"},
      {"nullx", "byte 4: expected the end of the text"},
      {"NaN", "byte 0: expected a value"},
      {"Infinity", "byte 0: expected a value"},
      {"-Infinity", "byte 1: a number needs a digit here"},
      {"-", "byte 1: a number needs a digit here"},
      {"+1", "byte 0: expected a value"},
      {".5", "byte 0: expected a value"},
      {"01", "byte 1: a number must not have leading zeros"},
      {"-00", "byte 2: a number must not have leading zeros"},
      {"1.", "byte 2: a number needs a digit after its point"},
      {"1.e5", "byte 2: a number needs a digit after its point"},
      {"1e", "byte 2: a number needs a digit in its exponent"},
      {"1e+", "byte 3: a number needs a digit in its exponent"},
      {"0x10", "byte 1: expected the end of the text"},
      {"1_000", "byte 1: expected the end of the text"},
      {"1 2", "byte 2: expected the end of the text"},
      {"[", "byte 1: expected a value, found the end of the text"},
      {"[1", "byte 2: expected ',' or ']'"},
      {"[1,]", "byte 3: expected a value"},
      {"[,1]", "byte 1: expected a value"},
      {"[1 2]", "byte 3: expected ',' or ']'"},
      {"[1}", "byte 2: expected ',' or ']'"},
      {"]", "byte 0: expected a value"},
      {"{", "byte 1: expected a key, which is a string"},
      {"{1:2}", "byte 1: expected a key, which is a string"},
      {"{'a':2}", "byte 1: expected a key, which is a string"},
      {R"({"a"})", "byte 4: expected ':' after a key"},
      {R"({"a":})", "byte 5: expected a value"},
      {R"({"a":1)", "byte 6: expected ',' or '}'"},
      {R"({"a":1,})", "byte 7: expected a key, which is a string"},
      {R"({"a":1]})", "byte 6: expected ',' or '}'"},
      {"// c\n1", "byte 0: expected a value"},
      {"\xEF\xBB\xBF{}", "byte 0: a byte order mark is not accepted"},
      {"\xC2\xA0{}", "byte 0: expected a value"},
      {"\f1", "byte 0: expected a value"},
      {std::string_view("\0", 1), "byte 0: expected a value"},
      {std::string_view("[1]\0", 4), "byte 3: expected the end of the text"},
      {std::string_view("[\0]", 3), "byte 1: expected a value"},
      {R"("abc)", "byte 4: the text ends inside a string"},
      {R"("abc\)", "byte 4: the text ends inside a string"},
      {"\"a\nb\"", "byte 2: a control character in a string must be escaped"},
      {std::string_view("\"\0\"", 3), "byte 1: a control character in a string must be escaped"},
      {R"("\x41")", "byte 1: unknown escape"},
      {R"("\'")", "byte 1: unknown escape"},
      {R"("\u12")", "byte 1: \\u needs four hexadecimal digits"},
      {R"("\u12g4")", "byte 1: \\u needs four hexadecimal digits"},
      {R"("\U0041")", "byte 1: unknown escape"},
      {"'a'", "byte 0: expected a value"},
  };
  for (const auto& [text, message] : cases) EXPECT_EQ(check(text), message) << text;
}

TEST(JsonReaderTest, RefusesUnpairedSurrogateEscapes) {
  for (const std::string_view text :
       {R"("\ud800")", R"("\udc00")", R"("\ud800x")", R"("\ud800\n")", R"("\ud800\u0041")", R"("\ud800\ud800")",
        R"("\udc00\ud800")", R"("\ud83d\ude00\ude00")", R"("\ud83d\u")", R"("\ud83d\ude0")"}) {
    EXPECT_THAT(check(text), HasSubstr("an unpaired surrogate escape is no character")) << text;
  }
  EXPECT_EQ(check(R"("xy\ud800")"), "byte 3: an unpaired surrogate escape is no character");
}

TEST(JsonReaderTest, RefusesWhatIsNotUtf8InAStringAndNamesTheByte) {
  for (const std::string_view bytes : {"\x80", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                       "\xF5\x80", "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98"}) {
    EXPECT_EQ(check("[\"ok\",\"12345678" + std::string(bytes) + "\"]"), "byte 15: not UTF-8") << bytes;
  }
}

TEST(JsonReaderTest, UnescapesStrings) {
  EXPECT_EQ(*string_in(R"("plain \"\\\/\b\f\n\r\t end")"), "plain \"\\/\b\f\n\r\t end");
  EXPECT_EQ(*string_in(R"("\u0041\u00e9\u20AC\ud83d\uDE00")"), "A\u00e9\u20ac\U0001F600");
  EXPECT_EQ(*string_in(R"("\u0000x")"), std::string("\0x", 2));
  EXPECT_EQ(*string_in(R"("\uffff\udbff\udfff\ud800\udc00")"), "\uffff\U0010FFFF\U00010000");
  EXPECT_EQ(*string_in(" \"verbatim \u00e9\""), "verbatim \u00e9");
}

TEST(JsonReaderTest, AStringLiteralReadsBackWhateverItHolds) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr std::string_view kBytes("ab\"\\/\0\x01\x1f\n\r\t\x7f\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 22);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes(random() % 40, ' ');
    for (char& c : bytes) c = kBytes[random() % kBytes.size()];
    const std::string text = utf8_with_replacement(bytes);
    const std::string quoted = json_quote(text);
    ASSERT_EQ(*string_in(quoted), text);
    ASSERT_EQ(check(quoted), "ok");
  }
  EXPECT_EQ(json_quote(std::string_view("\"\\\b\f\n\r\t\0\x1f/\x7f\u00e9", 13)),
            "\"\\\"\\\\\\u0008\\u000c\\n\\r\\t\\u0000\\u001f/\x7f\u00e9\"");
}

TEST(JsonReaderTest, NumbersKeepTheirSpelling) {
  for (const std::string_view text : {"-0", "12e3", "1.50", "1E+5", "123456789012345678901234567890", "1e-400"}) {
    JsonReader reader(text, kDepthMax);
    const auto read = reader.read_number_text();
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, text);
    EXPECT_TRUE(reader.expect_end());
  }
}

TEST(JsonReaderTest, IntegersMayHaveAnyLength) {
  const std::string digits(100'000, '9');
  EXPECT_EQ(check(digits), "ok");
  EXPECT_EQ(check("-" + digits), "ok");
  JsonReader reader(digits, kDepthMax);
  EXPECT_EQ(*reader.peek(), JsonType::kInteger);
}

TEST(JsonReaderTest, NumbersWithFractionOrExponentMustBeFinite) {
  const std::string many_zeros(400, '0');
  for (const std::string& text :
       {std::string("1e400"), std::string("-1e400"), std::string("1e309"), std::string("1.8e308"),
        std::string("1.7976931348623159e308"), std::string("0.1e310"), "1" + many_zeros + ".5", "1" + many_zeros + "e0",
        std::string("1e99999999999999999999999999")}) {
    EXPECT_EQ(check(text), "byte 0: a number must be finite as a double") << text;
  }
  for (const std::string& text :
       {std::string("1e308"), std::string("1.7976931348623157e308"), std::string("1.7976931348623158e308"),
        std::string("17.976931348623157e307"), std::string("1e-99999999999999999999999999"),
        "0." + many_zeros + "1e400", "1" + many_zeros + ".5e-400", "0." + many_zeros + "1", "1" + many_zeros}) {
    EXPECT_EQ(check(text), "ok") << text;
  }
}

TEST(JsonReaderTest, FinitenessAgreesWithTheConversionNearTheLimit) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    const int shift = static_cast<int>(random() % 30) - 15;
    std::string text = random() % 2 ? "-" : "";
    if (shift < 0)
      text += "0." + std::string(static_cast<size_t>(-shift - 1), '0') + std::to_string(1 + random() % 9999);
    if (shift >= 0) text += std::to_string(1 + random() % 9999) + std::string(static_cast<size_t>(shift), '0');
    text += "e" + std::to_string(300 + static_cast<int>(random() % 30));
    const bool is_finite = std::isfinite(std::strtod(text.c_str(), nullptr));
    ASSERT_EQ(check(text) == "ok", is_finite) << text;
    ASSERT_EQ(number_from(text).has_value(), is_finite) << text;
  }
}

TEST(JsonReaderTest, NumberFromIsTheNearestDouble) {
  EXPECT_EQ(number_from("0.1"), 0.1);
  EXPECT_EQ(number_from("-12e-1"), -1.2);
  EXPECT_EQ(number_from("9007199254740993"), 9007199254740992.0);
  EXPECT_EQ(number_from("1e-400"), 0.0);
  EXPECT_TRUE(std::signbit(*number_from("-1e-400")));
  EXPECT_EQ(number_from("4.9406564584124654e-324"), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(number_from("1.7976931348623157e308"), std::numeric_limits<double>::max());
  EXPECT_EQ(number_from("1e400"), std::nullopt);
  EXPECT_EQ(number_from("1" + std::string(400, '0')), std::nullopt);
}

TEST(JsonReaderTest, IntegerFromTakesIntegersOf64Bits) {
  EXPECT_EQ(integer_from("0"), 0);
  EXPECT_EQ(integer_from("-0"), 0);
  EXPECT_EQ(integer_from("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(integer_from("-9223372036854775808"), INT64_MIN);
  for (const std::string_view text : {"9223372036854775808", "-9223372036854775809", "1.0", "1e0", ""}) {
    EXPECT_EQ(integer_from(text), std::nullopt) << text;
  }
}

TEST(JsonReaderTest, PeekTellsTypesWithoutConsuming) {
  const std::pair<std::string_view, JsonType> cases[] = {
      {" null", JsonType::kNull}, {"true", JsonType::kBoolean},  {"-1", JsonType::kInteger}, {"1.0", JsonType::kNumber},
      {"1e2", JsonType::kNumber}, {R"("s")", JsonType::kString}, {"[]", JsonType::kArray},   {"{}", JsonType::kObject},
  };
  for (const auto& [text, type] : cases) {
    JsonReader reader(text, kDepthMax);
    EXPECT_EQ(*reader.peek(), type) << text;
    EXPECT_EQ(*reader.peek(), type) << text;
    EXPECT_TRUE(reader.read_verbatim());
    EXPECT_TRUE(reader.expect_end());
  }
}

TEST(JsonReaderTest, AnotherTypeIsNamed) {
  const auto message = [](std::string_view text, auto read) {
    JsonReader reader(text, kDepthMax);
    const auto result = read(reader);
    return result ? std::string("ok") : result.error().message;
  };
  EXPECT_EQ(message(" 5", [](JsonReader& r) { return r.read_string(); }),
            "byte 1: expected a string, found an integer");
  EXPECT_EQ(message("5.0", [](JsonReader& r) { return r.read_boolean(); }),
            "byte 0: expected a boolean, found a number");
  EXPECT_EQ(message("[]", [](JsonReader& r) { return r.read_null(); }), "byte 0: expected null, found an array");
  EXPECT_EQ(message("{}", [](JsonReader& r) { return r.read_number_text(); }),
            "byte 0: expected a number, found an object");
  EXPECT_EQ(message("null", [](JsonReader& r) { return r.read_array([](size_t) { return Status(); }); }),
            "byte 0: expected an array, found null");
  EXPECT_EQ(message("true", [](JsonReader& r) { return r.read_object([](const std::string&) { return Status(); }); }),
            "byte 0: expected an object, found a boolean");
  EXPECT_EQ(message("?", [](JsonReader& r) { return r.read_string(); }), "byte 0: expected a value");
}

TEST(JsonReaderTest, ReadsLiterals) {
  EXPECT_TRUE(JsonReader(" null", kDepthMax).read_null());
  EXPECT_EQ(*JsonReader("true", kDepthMax).read_boolean(), true);
  EXPECT_EQ(*JsonReader("false", kDepthMax).read_boolean(), false);
  EXPECT_FALSE(JsonReader("tru", kDepthMax).read_boolean());
  EXPECT_FALSE(JsonReader("nul", kDepthMax).read_null());
}

TEST(JsonReaderTest, ObjectsKeepTheOrderOfTheirMembersAndUnescapeKeys) {
  JsonReader reader(R"( {"b":1,"a":[true],"\u0063\n":null} )", kDepthMax);
  std::vector<std::string> keys;
  std::vector<std::string> values;
  ASSERT_TRUE(reader.read_object([&](const std::string& key) -> Status {
    keys.push_back(key);
    const auto value = reader.read_verbatim();
    if (!value) return fail(value.error());
    values.emplace_back(*value);
    return {};
  }));
  EXPECT_TRUE(reader.expect_end());
  EXPECT_THAT(keys, ElementsAre("b", "a", "c\n"));
  EXPECT_THAT(values, ElementsAre("1", "[true]", "null"));
}

TEST(JsonReaderTest, VerbatimIsTheTextWithoutTheSpaceAroundIt) {
  JsonReader reader("  [1,  {\"a\" : 1e5}]  ", kDepthMax);
  EXPECT_EQ(*reader.read_verbatim(), "[1,  {\"a\" : 1e5}]");
  EXPECT_TRUE(reader.expect_end());
}

TEST(JsonReaderTest, AnErrorOfACallbackEndsTheReading) {
  JsonReader reader("[1,2,3]", kDepthMax);
  size_t calls = 0;
  const auto status = reader.read_array([&](size_t index) -> Status {
    ++calls;
    if (index == 1) return fail(ErrorKind::kConflict, "enough");
    auto read = reader.read_number_text();
    if (!read) return fail(read.error());
    return {};
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kConflict);
  EXPECT_EQ(calls, 2U);
}

TEST(JsonReaderTest, CheckingAnArrayShowsItsObjectsOnly) {
  JsonReader reader(R"( [1,{"a":[{}]}, "{}",[{"b":1}],{ },null] )", kDepthMax);
  std::vector<std::pair<size_t, std::string>> objects;
  ASSERT_TRUE(reader.check_array([&](size_t index, std::string_view text) -> Status {
    objects.emplace_back(index, text);
    return {};
  }));
  EXPECT_TRUE(reader.expect_end());
  EXPECT_THAT(objects, ElementsAre(Pair(1, R"({"a":[{}]})"), Pair(4, "{ }")));
}

TEST(JsonReaderTest, CheckingAnArrayIsAsStrictAsReadingIt) {
  const auto message = [](std::string_view text) {
    JsonReader reader(text, 2);
    const auto status = reader.check_array([](size_t index, std::string_view) -> Status {
      if (index == 2) return fail(ErrorKind::kConflict, "enough");
      return {};
    });
    return status ? std::string("ok") : status.error().message;
  };
  EXPECT_EQ(message("[[],{}]"), "ok");
  EXPECT_EQ(message("[1,2,{}]"), "enough");
  EXPECT_EQ(message("[1,2,3,{}]"), "ok");
  EXPECT_EQ(message("{}"), "byte 0: expected an array, found an object");
  EXPECT_EQ(message("[[[]]]"), "byte 2: nested more than 2 deep");
  EXPECT_EQ(message("[01]"), "byte 2: a number must not have leading zeros");
  EXPECT_EQ(message(R"([{"a":1,"a":2}])"), "byte 11: the key \"a\" is doubled");
  EXPECT_EQ(message("[1 2]"), "byte 3: expected ',' or ']'");
}

TEST(JsonReaderTest, DoubledKeysAreRefusedAtAnyDepthAndAfterUnescaping) {
  EXPECT_EQ(check(R"({"a":1,"b":2,"a":3})"), R"(byte 16: the key "a" is doubled)");
  EXPECT_THAT(check(R"([[{"x":{"a":1,"\u0061":2}}]])"), HasSubstr("\"a\" is doubled"));
  EXPECT_THAT(check(R"({"\u0061":1,"a":2})"), HasSubstr("\"a\" is doubled"));
  EXPECT_THAT(check(R"({"\/":1,"/":2})"), HasSubstr("\"/\" is doubled"));
  EXPECT_THAT(check(R"({"\ud83d\ude00":1,"😀":2})"), HasSubstr("is doubled"));
  EXPECT_THAT(check(R"({"":1,"":2})"), HasSubstr("\"\" is doubled"));
  // Equal keys of different objects are no matter, also around an inner object.
  EXPECT_EQ(check(R"([{"a":1},{"a":1}])"), "ok");
  EXPECT_EQ(check(R"({"a":{"a":{"a":1},"b":2},"b":{"\u0061":1},"c":{"\u0061":1}})"), "ok");
  EXPECT_THAT(check(R"({"a":{"b":1},"b":{"a":1},"\u0062":1})"), HasSubstr("\"b\" is doubled"));
}

TEST(JsonReaderTest, DoubledKeysOfLargeObjectsAreRefusedWhereverTheyStand) {
  for (const size_t count : {15U, 16U, 17U, 18U, 1000U}) {
    for (const size_t first : {size_t{0}, count / 2, count - 2}) {
      std::string text = "{";
      for (size_t i = 0; i < count; ++i) text += "\"k" + std::to_string(i) + "\":{\"k0\":1},";
      const std::string distinct = text + R"("\u006bx":0})";
      EXPECT_EQ(check(distinct), "ok");
      EXPECT_THAT(check(text + R"("\u006b)" + std::to_string(first) + "\":0}"), HasSubstr("doubled")) << count;
    }
  }
}

TEST(JsonReaderTest, LargeObjectsAreNotQuadratic) {
  // A comparison of all pairs would take the better part of an hour.
  constexpr size_t kCount = 1'000'000;
  std::string text = "{";
  for (size_t i = 0; i < kCount; ++i) text += "\"" + std::to_string(i) + "\":0,";
  text.back() = '}';
  EXPECT_EQ(check(text), "ok");
  size_t members = 0;
  JsonReader reader(text, kDepthMax);
  EXPECT_TRUE(reader.read_object([&](const std::string&) -> Status {
    ++members;
    auto value = reader.read_verbatim();
    if (!value) return fail(value.error());
    return {};
  }));
  EXPECT_EQ(members, kCount);
}

TEST(JsonReaderTest, NestingIsBounded) {
  const auto nested = [](int depth, std::string_view open, std::string_view close) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += open;
    text += "1";
    for (int i = 0; i < depth; ++i) text += close;
    return text;
  };
  EXPECT_EQ(check(nested(128, "[", "]")), "ok");
  EXPECT_EQ(check(nested(129, "[", "]")), "byte 128: nested more than 128 deep");
  EXPECT_EQ(check(nested(128, R"({"a":)", "}")), "ok");
  EXPECT_EQ(check(nested(129, R"({"a":)", "}")), "byte 640: nested more than 128 deep");
  EXPECT_EQ(check("[[[]],[[]],[[]]]", 3), "ok");
  EXPECT_EQ(check("[[[]],[[[]]]]", 3), "byte 8: nested more than 3 deep");
  EXPECT_EQ(check("1", 0), "ok");
  EXPECT_EQ(check("[]", 0), "byte 0: nested more than 0 deep");
  EXPECT_THAT(check(std::string(1'000'000, '[')), HasSubstr("nested more than 128 deep"));
}

TEST(JsonReaderTest, NestingCountsThroughCallbacks) {
  JsonReader reader("[[[1]]]", 2);
  const auto status = reader.read_array([&](size_t) {
    return reader.read_array([&](size_t) -> Status {
      auto read = reader.read_verbatim();
      if (!read) return fail(read.error());
      return {};
    });
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "byte 2: nested more than 2 deep");
}

TEST(JsonReaderTest, EveryPrefixOfATextIsRefused) {
  const std::string text = R"({"a":[1,-2.5e+3,"x\u00e9\ud83d\ude00é",true,false,null],"b":{"c":{}}})";
  ASSERT_EQ(check(text), "ok");
  for (size_t length = 0; length < text.size(); ++length) EXPECT_NE(check(text.substr(0, length)), "ok") << length;
}

}  // namespace
}  // namespace kcoral::schema
