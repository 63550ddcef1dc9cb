#include <gtest/gtest.h>

#include <set>

#include "base/sha256.h"
#include "base/uuid.h"

namespace kcoral {
namespace {

TEST(Uuid, RoundTripsItsCanonicalText) {
  const std::string text = "0123abcd-ef01-4345-89ab-cdef01234567";
  const auto id = Uuid::parse(text);
  ASSERT_TRUE(id);
  EXPECT_EQ(id->str(), text);
}

TEST(Uuid, RefusesEveryOtherSpelling) {
  for (const char* text : {"", "0123abcd-ef01-4345-89ab-cdef0123456", "0123abcd-ef01-4345-89ab-cdef012345678",
                           "0123ABCD-ef01-4345-89ab-cdef01234567", "{123abcd-ef01-4345-89ab-cdef0123456}",
                           "0123abcdef01434589abcdef0123456789ab", "0123abcd-ef01-4345-89ab_cdef01234567",
                           "0123abcd-ef01-4345-89ab-cdef0123456g"}) {
    EXPECT_FALSE(Uuid::parse(text)) << text;
  }
}

TEST(Uuid, RandomOnesAreVersionFourAndDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string text = Uuid::random().str();
    EXPECT_EQ(text[14], '4');
    EXPECT_NE(std::string("89ab").find(text[19]), std::string::npos);
    EXPECT_TRUE(Uuid::parse(text));
    seen.insert(text);
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(Uuid, OnesMadeLaterSortBehind) {
  const WallTime now = Clock::system().wall_now();
  const Uuid first = Uuid::made_at(now);
  const Uuid second = Uuid::made_at(now + std::chrono::milliseconds(1));
  EXPECT_LT(first, second);
  EXPECT_LT(first.str(), second.str());
  EXPECT_NE(first, Uuid::made_at(now)) << "of one millisecond they differ";
  EXPECT_EQ(first.str()[14], '7');
  EXPECT_NE(std::string("89ab").find(first.str()[19]), std::string::npos);
  EXPECT_EQ(Uuid::made_at(WallTime(std::chrono::milliseconds(0x017F22E279B0))).str().substr(0, 13), "017f22e2-79b0")
      << "RFC 9562, A.6";
}

// FIPS 180-2, appendix B.
TEST(Sha256, MatchesPublishedVectors) {
  EXPECT_EQ(Sha256::of("abc").hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256::of("").hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, AStreamInPiecesHashesLikeTheWhole) {
  const std::string text(100000, 'x');
  Sha256 hash;
  for (size_t offset = 0; offset < text.size(); offset += 777) {
    hash.update(std::as_bytes(std::span(text).subspan(offset, std::min<size_t>(777, text.size() - offset))));
  }
  EXPECT_EQ(hash.finish(), Sha256::of(text));
}

TEST(Digest, AcceptsOnlyLowercaseHex) {
  const std::string hex = Sha256::of("abc").hex();
  EXPECT_EQ(Digest::parse(hex)->hex(), hex);
  EXPECT_FALSE(Digest::parse(hex.substr(1)));
  EXPECT_FALSE(Digest::parse("B" + hex.substr(1)));
  EXPECT_FALSE(Digest::parse(hex + "0"));
}

}  // namespace
}  // namespace kcoral
