#include "gateway/chunked.h"

#include <gtest/gtest.h>

#include <optional>

namespace kcoral::gateway {
namespace {

struct Decoded {
  std::string data;
  std::string rest;
  bool ended = false;
  bool failed = false;
  ErrorKind error_kind{};
};

Decoded decode(std::string_view wire, size_t piece_bytes, uint64_t body_bytes_max = 1 << 20) {
  ChunkedDecoder decoder(body_bytes_max);
  Decoded decoded;
  while (!wire.empty()) {
    std::string_view piece = wire.substr(0, piece_bytes);
    wire.remove_prefix(piece.size());
    while (!piece.empty()) {
      const auto step = decoder.next(piece);
      if (!step) {
        decoded.failed = true;
        decoded.error_kind = step.error().kind;
        return decoded;
      }
      decoded.data += step->data;
      if (step->kind == ChunkedDecoder::Step::Kind::kEnd) {
        decoded.ended = true;
        decoded.rest = std::string(piece) + std::string(wire);
        return decoded;
      }
    }
  }
  return decoded;
}

TEST(Chunked, DecodesInPiecesOfAnySize) {
  const std::string wire = "4\r\nWiki\r\nA;name=value\r\n0123456789\r\n0\r\nTrailer: ignored\r\n\r\nGET /next";
  for (size_t piece = 1; piece <= wire.size(); ++piece) {
    const Decoded decoded = decode(wire, piece);
    EXPECT_TRUE(decoded.ended);
    EXPECT_EQ(decoded.data, "Wiki0123456789");
    EXPECT_EQ(decoded.rest, "GET /next") << piece;
  }
}

TEST(Chunked, AnIncompleteBodyDoesNotEnd) {
  for (const char* wire : {"4\r\nWik", "4\r\nWiki\r\n", "4\r\nWiki\r\n0\r\n", "4"}) EXPECT_FALSE(decode(wire, 1).ended);
}

TEST(Chunked, RefusesWhatOthersMightReadDifferently) {
  for (const std::string wire :
       {"+4\r\nWiki\r\n0\r\n\r\n", "-4\r\n", "0x4\r\nWiki\r\n", "4\nWiki\r\n0\r\n\r\n", "\r\n", "4\r\nWikipedia\r\n",
        "G\r\n", " 4\r\nWiki\r\n", "1234567812345678\r\n", "4\r\nWiki\n", "4\r;\r\nWiki\r\n"}) {
    EXPECT_TRUE(decode(wire, wire.size()).failed) << wire;
    EXPECT_TRUE(decode(wire, 1).failed) << wire;
  }
}

TEST(Chunked, AChunkLongerThanItsSizeIsRefusedAtItsFirstByte) {
  for (const char* wire : {"4\r\nWikip", "4\r\nWiki\n", "4\r\nWiki\r\r", "4\r\nWiki\rx"}) {
    for (const size_t piece : {size_t{1}, size_t{100}}) {
      const Decoded decoded = decode(wire, piece);
      EXPECT_TRUE(decoded.failed) << wire;
      EXPECT_EQ(decoded.error_kind, ErrorKind::kParse);
    }
  }
}

TEST(Chunked, ABodyOverTheLimitIsRefusedWhenItIsAnnounced) {
  EXPECT_TRUE(decode("4\r\nWiki\r\n6\r\n012345\r\n0\r\n\r\n", 3, 10).ended);
  for (const char* wire : {"b\r\n", "4\r\nWiki\r\n7\r\n", "ffffffffffffffff\r\n", "fffffffffffffffffffffff;x=y\r\n",
                           "4\r\nWiki\r\nffffffffffffffff\r\n"}) {
    for (const size_t piece : {size_t{1}, size_t{100}}) {
      const Decoded decoded = decode(wire, piece, 10);
      EXPECT_TRUE(decoded.failed) << wire;
      EXPECT_EQ(decoded.error_kind, ErrorKind::kRequestTooLarge) << wire;
    }
  }
  EXPECT_EQ(decode("0000000000000000004\r\n", 100).error_kind, ErrorKind::kParse) << "padded";
}

TEST(Chunked, BoundsItsLines) {
  EXPECT_TRUE(decode("4;" + std::string(2000, 'x') + "\r\nWiki\r\n0\r\n\r\n", 7).failed);
  std::string trailers = "0\r\n";
  for (int i = 0; i < 1000; ++i) trailers += "X: " + std::string(100, 'x') + "\r\n";
  EXPECT_TRUE(decode(trailers, 4096).failed);
}

}  // namespace
}  // namespace kcoral::gateway
