#include "gateway/head.h"

#include <gtest/gtest.h>

#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

ParsedHead parse(std::string_view lines) { return parse_head(std::string(lines) + "\r\n"); }
ParsedHead parse_headers(std::string_view headers) {
  return parse("POST /execute HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers));
}

TEST(HeadScanner, FindsTheEndInPiecesOfAnySize) {
  const std::string wire = "GET / HTTP/1.1\r\nA: b\r\n\r\nbody\r\n\r\n";
  for (size_t piece = 1; piece <= wire.size(); ++piece) {
    HeadScanner scanner;
    std::optional<size_t> end;
    for (size_t size = piece; !end; size += piece) end = *scanner.scan(std::string_view(wire).substr(0, size));
    EXPECT_EQ(*end, 24u) << piece;
  }
}

TEST(HeadScanner, RefusesBareLineFeedsAndHeadsWithoutEnd) {
  HeadScanner scanner;
  EXPECT_FALSE(scanner.scan("GET / HTTP/1.1\n"));
  scanner.reset();
  EXPECT_TRUE(scanner.scan(std::string(limits::kHeadBytesMax, 'x')));
  EXPECT_FALSE(scanner.scan(std::string(limits::kHeadBytesMax + 1, 'x')));
}

TEST(Head, ReadsLineAndHeaders) {
  const auto parsed =
      parse("GET /requests/7?wait=5&state=a%20b&wait=6&flag HTTP/1.1\r\nHOST: a\r\nX-Odd:  two words \t\r\n");
  ASSERT_FALSE(parsed.error) << parsed.error->message;
  EXPECT_EQ(parsed.head.method, "GET");
  EXPECT_EQ(parsed.head.path, "/requests/7");
  EXPECT_EQ(parsed.head.query, "wait=5&state=a%20b&wait=6&flag");
  EXPECT_EQ(parsed.head.sole("x-odd"), "two words");
  EXPECT_TRUE(parsed.head.keep_alive);
  EXPECT_FALSE(parsed.head.body.has_body());
}

TEST(Head, AnAbsoluteTargetNamesTheHost) {
  const auto parsed = parse("GET http://Example.com:81/health?a=b HTTP/1.1\r\nHost: other\r\n");
  ASSERT_FALSE(parsed.error);
  EXPECT_EQ(parsed.head.path, "/health");
  EXPECT_EQ(parsed.head.sole("host"), "Example.com:81");
  EXPECT_EQ(parse("GET http://a?b=c HTTP/1.1\r\nHost: a\r\n").head.path, "/");
  EXPECT_EQ(parse("GET http://a?b=c HTTP/1.1\r\nHost: a\r\n").head.query, "b=c");
}

TEST(Head, ReadsFraming) {
  EXPECT_EQ(parse_headers("Content-Length: 5\r\n").head.body.content_length, 5u);
  EXPECT_TRUE(parse_headers("Transfer-Encoding: Chunked\r\n").head.body.chunked);
  EXPECT_TRUE(parse_headers("Expect: 100-Continue\r\nContent-Length: 1\r\n").head.expects_continue);
}

TEST(Head, ALengthBeyondAllNumbersIsALength) {
  EXPECT_EQ(parse_headers("Content-Length: 9999999999999999999\r\n").head.body.content_length, 9999999999999999999u);
  const auto parsed = parse_headers("Content-Length: " + std::string(100, '9') + "\r\n");
  EXPECT_FALSE(parsed.error);
  EXPECT_EQ(parsed.head.body.content_length, std::numeric_limits<uint64_t>::max());
}

TEST(Head, RefusesFramingInDoubt) {
  for (const char* headers : {"Content-Length: 5\r\nContent-Length: 5\r\n",
                              "Content-Length: 5, 5\r\n",
                              "Content-Length: +5\r\n",
                              "Content-Length: -5\r\n",
                              "Content-Length: 0x5\r\n",
                              "Content-Length: 5 5\r\n",
                              "Content-Length: \r\n",
                              "Content-Length: 99999999999999999999x\r\n",
                              "Content-Length: 0000000000000000001\r\n",
                              "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: gzip\r\n",
                              "Transfer-Encoding: gzip, chunked\r\n",
                              "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: identity\r\n",
                              "Transfer-Encoding : chunked\r\n",
                              "Content-Length : 5\r\n",
                              " folded: x\r\n",
                              "A: b\r\n continued\r\n",
                              "no colon\r\n",
                              ": no name\r\n",
                              "A\x01: b\r\n",
                              "A: b\x01\r\n",
                              "A: b\rc: d\r\n",
                              "Host: second\r\n",
                              "Expect: 200-ok\r\n"}) {
    EXPECT_TRUE(parse_headers(headers).error) << headers;
  }
  EXPECT_TRUE(parse_headers(std::string_view("A: b\0c\r\n", 8)).error);
  EXPECT_TRUE(parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n").error);
}

TEST(Head, RefusesMalformedRequestLines) {
  for (const char* line :
       {"", "GET", "GET /", "GET / HTTP/1.1 ", "GET  / HTTP/1.1", " GET / HTTP/1.1", "GET / HTTP/2.0", "GET / http/1.1",
        "GET / HTTP/1.1x", "GET /a b HTTP/1.1", "GET health HTTP/1.1", "GET\t/ HTTP/1.1", "GET /\x80 HTTP/1.1",
        "CONNECT a:1 HTTP/1.1", "G\"T / HTTP/1.1", "GET ftp://a/ HTTP/1.1"}) {
    EXPECT_TRUE(parse(std::string(line) + "\r\nHost: a\r\n").error) << line;
  }
  EXPECT_TRUE(parse("GET / HTTP/1.1\r\n").error) << "without Host";
}

TEST(Head, NoOrdinaryHeaderIsEverAnError) {
  for (const char* header : {"Accept: nonsense",
                             "Accept: */*;q=7",
                             "Cookie: ;;=;",
                             "Cookie: a",
                             "User-Agent: \xff\xfe",
                             "Connection: ,;,",
                             "Accept-Encoding: x-unknown;q=",
                             "Content-Encoding: zz",
                             "Date: yesterday",
                             "Cache-Control: max-age=x",
                             "Set-Cookie: x; Expires=never",
                             "Authorization: ?",
                             "Content-Type: ///",
                             "Host2: [",
                             "Empty:",
                             "Access-Control-Allow-Origin: ",
                             "Server: ",
                             "Location:",
                             "Last-Modified: 0",
                             "Upgrade: h2c"}) {
    EXPECT_FALSE(parse_headers(std::string(header) + "\r\n").error) << header;
  }
}

TEST(Head, AcceptsAnyMethodThatIsAToken) {
  EXPECT_EQ(parse("BREW /pot HTTP/1.1\r\nHost: a\r\n").head.method, "BREW");
  EXPECT_EQ(parse("OPTIONS * HTTP/1.1\r\nHost: a\r\n").head.path, "*");
}

TEST(Head, KeepsAliveAsTheVersionSays) {
  EXPECT_FALSE(parse_headers("Connection: Keep-Alive, Close\r\n").head.keep_alive);
  EXPECT_FALSE(parse_headers("Connection: a\r\nConnection: close\r\n").head.keep_alive);
  EXPECT_FALSE(parse("GET / HTTP/1.0\r\n").head.keep_alive);
  EXPECT_TRUE(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n").head.keep_alive);
}

TEST(Head, TheIdIsOneCanonicalUuidOrAFreshOne) {
  const Uuid id = Uuid::random();
  EXPECT_EQ(parse_headers("x-REQUEST-id: " + id.str() + "\r\n").head.request_id(), id);
  std::string upper = id.str();
  std::transform(upper.begin(), upper.end(), upper.begin(), ::toupper);
  const auto ignored = parse_headers("X-Request-ID: {" + id.str() + "}\r\n").head.request_id();
  EXPECT_NE(ignored, id);
  const std::string twice = "X-Request-ID: " + id.str() + "\r\n";
  EXPECT_NE(parse_headers(twice + twice).head.request_id(), id);
}

TEST(Head, AnErrorStillKnowsTheId) {
  const Uuid id = Uuid::random();
  const auto parsed = parse_headers("bad line\r\nContent-Length: x\r\nX-Request-ID: " + id.str() + "\r\n");
  EXPECT_TRUE(parsed.error);
  EXPECT_EQ(parsed.head.request_id(), id);
}

}  // namespace
}  // namespace kcoral::gateway
