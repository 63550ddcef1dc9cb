#include "schema/utf8.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <utility>

#include "schema/json_reader.h"

namespace kcoral::schema {
namespace {

// What CPython 3.11 makes of these with bytes.decode("utf-8", "replace").
constexpr std::pair<std::string_view, std::string_view> kAsPythonDecodes[] = {
    {"", ""},
    {"\x70\x6c\x61\x69\x6e", "\x70\x6c\x61\x69\x6e"},
    {"\xc3\xa9", "\xc3\xa9"},
    {"\xe2\x82\xac", "\xe2\x82\xac"},
    {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    {"\x80", "\xef\xbf\xbd"},
    {"\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xc1\xbf", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xe0\x9f\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf0\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf0\x8f\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xed\xbf\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xed\x9f\xbf", "\xed\x9f\xbf"},
    {"\xee\x80\x80", "\xee\x80\x80"},
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf5\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xe2\x82", "\xef\xbf\xbd"},
    {"\xe2\x82\x41", "\xef\xbf\xbd\x41"},
    {"\xe2\x41", "\xef\xbf\xbd\x41"},
    {"\xf0\x9f\x98", "\xef\xbf\xbd"},
    {"\xf0\x9f\x98\x41", "\xef\xbf\xbd\x41"},
    {"\xf0\x9f", "\xef\xbf\xbd"},
    {"\xf0\x9f\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
    {"\xf1\x80\x80\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
    {"\x41\xc3", "\x41\xef\xbf\xbd"},
    {"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
    {"\xc3\x41", "\xef\xbf\xbd\x41"},
    {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x41"},
    {"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64",
     "\x61\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\x62\xef\xbf\xbd\x63\xef\xbf\xbd\xef\xbf\xbd\x64"},
    {"\xf8\x88\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xfc\x84\x80\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\x31\x32\x33\x34\x35\x36\x37\x38\xc3\xa9\x80\x61\x62\x63\x64\x65\x66\x67\x68\xff",
     "\x31\x32\x33\x34\x35\x36\x37\x38\xc3\xa9\xef\xbf\xbd\x61\x62\x63\x64\x65\x66\x67\x68\xef\xbf\xbd"},
    {std::string_view("\x00\x7f", 2), std::string_view("\x00\x7f", 2)},
    {"\xef\xbb\xbf\x41", "\xef\xbb\xbf\x41"},
    {"\xef\xbf\xbf", "\xef\xbf\xbf"}};

TEST(Utf8Test, ReplacesAsPythonDoes) {
  for (const auto& [bytes, text] : kAsPythonDecodes) {
    EXPECT_EQ(utf8_with_replacement(bytes), text) << testing::PrintToString(std::string(bytes));
    EXPECT_EQ(is_valid_utf8(bytes), bytes == text) << testing::PrintToString(std::string(bytes));
  }
}

std::string encode(uint32_t code_point) {
  std::string text;
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 + code_point / 64);
    add(0x80 + code_point % 64);
  } else if (code_point < 0x10000) {
    add(0xE0 + code_point / 4096);
    add(0x80 + code_point / 64 % 64);
    add(0x80 + code_point % 64);
  } else {
    add(0xF0 + code_point / 262144);
    add(0x80 + code_point / 4096 % 64);
    add(0x80 + code_point / 64 % 64);
    add(0x80 + code_point % 64);
  }
  return text;
}

TEST(Utf8Test, AcceptsEveryScalarValueAndNoSurrogate) {
  for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    const std::string text = encode(code_point);
    const Utf8Step step = utf8_step(text, 0);
    const bool is_surrogate = code_point >= 0xD800 && code_point < 0xE000;
    ASSERT_EQ(step.is_well_formed, !is_surrogate) << code_point;
    if (!is_surrogate) {
      ASSERT_EQ(step.length, text.size()) << code_point;
    }
  }
}

TEST(Utf8Test, EveryPairOfBytesIsValidExactlyIfItIsTwoAsciiOrOneCharacter) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string pair = {static_cast<char>(first), static_cast<char>(second)};
      const bool is_ascii = first < 0x80 && second < 0x80;
      const bool is_character = first >= 0xC2 && first < 0xE0 && second >= 0x80 && second < 0xC0;
      EXPECT_EQ(is_valid_utf8(pair), is_ascii || is_character) << first << ' ' << second;
    }
  }
}

TEST(Utf8Test, ReplacingAnyBytesGivesValidTextThatStays) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr std::string_view kBytes = "aZ\x80\xbf\xc3\xa9\xe0\xe2\x82\xac\xed\xa0\xf0\x9f\x98\xf4\x8f\xff";
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 24, ' ');
    for (char& c : bytes) c = kBytes[random() % kBytes.size()];
    const std::string text = utf8_with_replacement(bytes);
    ASSERT_TRUE(is_valid_utf8(text)) << testing::PrintToString(bytes);
    ASSERT_EQ(utf8_with_replacement(text), text);
    if (is_valid_utf8(bytes)) {
      ASSERT_EQ(text, bytes);
    }
  }
}

TEST(Utf8Test, PrefixAndSuffixNeverCutACharacter) {
  const std::string text = "a\u00e9\u20ac\U0001F600z";  // 1 + 2 + 3 + 4 + 1 bytes
  const std::array<size_t, 13> prefix = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11};
  const std::array<size_t, 13> suffix = {0, 1, 1, 1, 1, 5, 5, 5, 8, 8, 10, 11, 11};
  for (size_t bytes_max = 0; bytes_max < prefix.size(); ++bytes_max) {
    EXPECT_EQ(utf8_prefix(text, bytes_max), text.substr(0, prefix[bytes_max])) << bytes_max;
    EXPECT_EQ(utf8_suffix(text, bytes_max), text.substr(text.size() - suffix[bytes_max])) << bytes_max;
  }
}

TEST(Utf8Test, PlainRunEndsAtEverySpecialByteAtEveryPosition) {
  for (int special = 0; special < 256; ++special) {
    const bool is_plain = special >= 0x20 && special < 0x80 && special != '"' && special != '\\';
    for (size_t position = 0; position < 20; ++position) {
      for (size_t offset = 0; offset <= position; ++offset) {
        std::string text(24, 'x');
        text[position] = static_cast<char>(special);
        ASSERT_EQ(plain_run(text, offset), is_plain ? text.size() - offset : position - offset)
            << special << " at " << position << " from " << offset;
      }
    }
  }
}

TEST(Utf8Test, StringRunGoesOnOverCharactersAndEndsBeforeWhatAStringMayNotHold) {
  const std::string run = "ascii é€\U0001F600é more than eight é";
  for (const std::string_view end : {"\"", "\\", "\n", "\x80", "\xC3", "\xED\xA0\x80", "\xC3\"", ""}) {
    const std::string text = run + std::string(end);
    EXPECT_EQ(string_run(text, 0), run.size()) << testing::PrintToString(text);
    EXPECT_EQ(string_run(text, 6), run.size() - 6);
    EXPECT_EQ(string_run(text, run.size()), 0U);
  }
}

}  // namespace
}  // namespace kcoral::schema
