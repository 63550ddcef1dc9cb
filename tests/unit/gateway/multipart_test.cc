#include "gateway/multipart.h"

#include <gtest/gtest.h>

#include "tests/unit/gateway/seed.h"

namespace kcoral::gateway {
namespace {

class Recorder : public MultipartSink {
 public:
  Status on_part_begin(const std::string& name, const std::string& content_type) override {
    log += "<" + name + "|" + content_type + ">";
    return {};
  }
  Status on_part_data(std::string_view bytes) override {
    EXPECT_FALSE(bytes.empty());
    log += bytes;
    return {};
  }
  Status on_part_end() override {
    log += "</>";
    return {};
  }
  std::string log;
};

constexpr const char* kType = "multipart/form-data; boundary=AaB03x";

/// What the sink saw, or "error: ..." as soon as something was refused.
std::string parse_in_pieces(std::string_view body, const std::function<size_t()>& next_bytes,
                            std::string_view content_type = kType) {
  Recorder recorder;
  auto parser = MultipartParser::create(content_type, recorder);
  if (!parser) return "error: " + parser.error().message;
  while (!body.empty()) {
    const std::string_view piece = body.substr(0, next_bytes());
    body.remove_prefix(piece.size());
    if (auto fed = parser->feed(piece); !fed) return "error: " + fed.error().message;
  }
  if (auto finished = parser->finish(); !finished) return "error: " + finished.error().message;
  return recorder.log;
}
std::string parse(std::string_view body, std::string_view content_type = kType) {
  return parse_in_pieces(
      body, [] { return std::string_view::npos; }, content_type);
}
bool fails(const std::string& outcome) { return outcome.starts_with("error: "); }

const std::string kBody =
    "preamble\r\n--AaB0 is no boundary\r\n"
    "--AaB03x\r\nContent-Disposition: form-data; name=\"program\"; filename=\"x.json\"\r\n"
    "Content-Type: application/json; charset=utf-8\r\n\r\n{\"a\": 1}\r\n"
    "--AaB03x  \t\r\ncontent-DISPOSITION:form-data;name=blob\r\nX-Other: ignored\r\n\r\n"
    "data\r\n--AaB03\r\n\r\r\n-\r\n--AaB03y\r\n\r\n"
    "--AaB03x\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n"
    "--AaB03x--\r\nepilogue\r\n--AaB03x\r\n";
const std::string kExpected =
    "<program|application/json>{\"a\": 1}</><blob|>data\r\n--AaB03\r\n\r\r\n-\r\n--AaB03y\r\n</><empty|></>";

TEST(Multipart, ParsesInOnePiece) { EXPECT_EQ(parse(kBody), kExpected); }

TEST(Multipart, ParsesAtEverySplit) {
  EXPECT_EQ(parse_in_pieces(kBody, [] { return 1; }), kExpected);
  for (size_t split = 1; split < kBody.size(); ++split) {
    bool first = true;
    EXPECT_EQ(parse_in_pieces(kBody, [&] { return std::exchange(first, false) ? split : kBody.size(); }), kExpected)
        << split;
  }
}

TEST(Multipart, ParsesInRandomPiecesWhateverTheDataLooksLike) {
  std::mt19937_64 random(test_seed());
  constexpr std::string_view kAlphabet = "\r\n-AaB03x";
  for (int round = 0; round < 3000; ++round) {
    std::string data;
    for (size_t left = random() % 60; left > 0; --left) data += kAlphabet[random() % kAlphabet.size()];
    if (("\r\n" + data).find("\r\n--AaB03x") != std::string::npos) continue;
    const std::string body = "--AaB03x\r\nContent-Disposition: form-data; name=b\r\n\r\n" + data + "\r\n--AaB03x--";
    ASSERT_EQ(parse_in_pieces(body, [&] { return 1 + random() % 12; }), "<b|>" + data + "</>");
  }
}

TEST(Multipart, FindsBoundariesInLargeData) {
  std::mt19937_64 random(test_seed());
  std::string data(300'000, '\0');
  for (char& c : data) c = static_cast<char>(random());
  const std::string body = "--AaB03x\r\nContent-Disposition: form-data; name=b\r\n\r\n" + data + "\r\n--AaB03x--\r\n";
  EXPECT_EQ(parse_in_pieces(body, [&] { return 1 + random() % 70'000; }), "<b|>" + data + "</>");
}

TEST(Multipart, AcceptsQuotedBoundariesAndBodiesWithoutParts) {
  EXPECT_EQ(parse("--a b:c\r\nContent-Disposition: form-data; name=x\r\n\r\n1\r\n--a b:c--",
                  "Multipart/Form-Data; charset=utf-8; Boundary=\"a b:c\""),
            "<x|>1</>");
  EXPECT_EQ(parse("--AaB03x--\r\n"), "");
}

TEST(Multipart, AFileNameMayEndInABackslash) {
  EXPECT_EQ(parse("--AaB03x\r\nContent-Disposition: form-data; name=\"x\"; filename=\"C:\\dir\\\"\r\n\r\n1\r\n"
                  "--AaB03x\r\nContent-Disposition: form-data; filename=\"C:\\dir\\\"; name=\"y\"\r\n\r\n2\r\n"
                  "--AaB03x--"),
            "<x|>1</><y|>2</>");
}

TEST(Multipart, RefusesContentTypesWithoutAUsableBoundary) {
  for (const char* type : {"", "application/json", "multipart/mixed; boundary=x", "multipart/form-data",
                           "multipart/form-data; boundary=", "multipart/form-data; boundary=\"a \"",
                           "multipart/form-data; boundary=\"a\r\n\"", "multipart/form-data; boundary=a; boundary=b",
                           "multipart/form-data; boundary=\"{}\""}) {
    EXPECT_TRUE(fails(parse("--x--", type))) << type;
  }
  EXPECT_TRUE(fails(parse("", "multipart/form-data; boundary=" + std::string(71, 'a'))));
}

TEST(Multipart, RefusesMalformedBodies) {
  const std::string begin = "--AaB03x\r\n";
  const std::string head = begin + "Content-Disposition: form-data; name=x\r\n\r\n";
  for (const std::string& body :
       {std::string(), std::string("no boundary"), begin, head, head + "data", head + "data\r\n--AaB03x",
        head + "data\r\n--AaB03x\r\n", head + "data\r\n--AaB03x-", head + "data\r\n--AaB03xjunk\r\n--AaB03x--",
        head + "data\r\n--AaB03x -- \r\n", begin + "\r\ndata\r\n--AaB03x--",
        begin + "Content-Disposition: attachment; name=x\r\n\r\n\r\n--AaB03x--",
        begin + "Content-Disposition: form-data\r\n\r\n\r\n--AaB03x--",
        begin + "Content-Disposition: form-data; name=\"x\r\n\r\n\r\n--AaB03x--",
        begin +
            "Content-Disposition: form-data; name=x\r\nContent-Disposition: form-data; name=y\r\n\r\n\r\n--AaB03x--",
        begin + "Content-Disposition: form-data;\r\n name=x\r\n\r\n\r\n--AaB03x--",
        begin + "no colon\r\n\r\n\r\n--AaB03x--", begin + "Content-Disposition: form-data; name=x\n\n\r\n--AaB03x--"}) {
    EXPECT_TRUE(fails(parse(body))) << body;
    EXPECT_TRUE(fails(parse_in_pieces(body, [] { return 1; }))) << body;
  }
}

TEST(Multipart, BoundsPartHeadsAndBoundaryLines) {
  const std::string endless = "--AaB03x\r\nX: " + std::string(20'000, 'x');
  EXPECT_TRUE(fails(parse(endless)));
  EXPECT_TRUE(fails(parse_in_pieces(endless, [] { return 100; })));
  EXPECT_TRUE(fails(parse("--AaB03x" + std::string(1000, ' '))));
}

TEST(Multipart, HandsOnTheSinksError) {
  class Refusing : public Recorder {
    Status on_part_end() override { return fail(ErrorKind::kConflict, "refused"); }
  } sink;
  auto parser = MultipartParser::create(kType, sink);
  const auto fed = parser->feed(kBody);
  ASSERT_FALSE(fed);
  EXPECT_EQ(fed.error().kind, ErrorKind::kConflict);
}

}  // namespace
}  // namespace kcoral::gateway
