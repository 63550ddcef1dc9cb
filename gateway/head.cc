#include "gateway/head.h"

#include <charconv>
#include <cstring>
#include <limits>

#include "gateway/ascii.h"
#include "gateway/request_line.h"
#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// "http://host:port/path?query" (a proxy's form) → authority and the rest.
std::optional<std::pair<std::string_view, std::string_view>> split_absolute(std::string_view target) {
  constexpr std::string_view kScheme = "http://";
  if (ascii_lowercase(target.substr(0, kScheme.size())) != kScheme) return std::nullopt;
  target.remove_prefix(kScheme.size());
  const size_t end = std::min(target.find_first_of("/?"), target.size());
  return std::pair(target.substr(0, end), target.substr(end));
}

Status parse_request_line(std::string_view line, RequestHead& head, std::optional<std::string>& authority) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return fail(ErrorKind::kParse, "the request line is not `method target version`");
  }
  const std::string_view method = line.substr(0, first);
  std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(method)) return fail(ErrorKind::kParse, "the request's method is malformed");
  head.method = method;
  if (version == "HTTP/1.1") {
    head.version = HttpVersion::k11;
  } else if (version == "HTTP/1.0") {
    head.version = HttpVersion::k10;
  } else {
    return fail(ErrorKind::kParse, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  }
  const bool visible = std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (target.empty() || !visible) return fail(ErrorKind::kParse, "the request target is malformed");

  std::string origin_form(target);
  if (const auto absolute = split_absolute(target)) {
    authority = absolute->first;
    origin_form = absolute->second.starts_with('/') ? "" : "/";
    origin_form += absolute->second;
  }
  if (method == "CONNECT" || (origin_form.front() != '/' && origin_form != "*")) {
    return fail(ErrorKind::kParse, "the request target must be a path");
  }
  auto path = path_of_target(origin_form);
  if (!path) return fail(path.error());
  head.path = std::move(*path);
  if (const size_t mark = origin_form.find('?'); mark != std::string::npos) head.query = origin_form.substr(mark + 1);
  return {};
}

Status parse_header_line(std::string_view line, RequestHead& head) {
  if (is_blank(line.front())) return fail(ErrorKind::kParse, "folded header lines are not accepted");
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return fail(ErrorKind::kParse, "a header line has no colon");
  const std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return fail(ErrorKind::kParse, "a header's name is malformed");
  const std::string_view value = trim_blanks(line.substr(colon + 1));
  if (std::any_of(value.begin(), value.end(), [](char c) { return is_control(c) && c != '\t'; })) {
    return fail(ErrorKind::kParse, "header \"{}\" holds a control character", name);
  }
  head.headers.push_back({ascii_lowercase(name), std::string(value)});
  return {};
}

/// Reads every line, the malformed ones apart, so that an error's answer can carry the client's id. The first error
/// wins.
Status parse_lines(std::string_view bytes, RequestHead& head, std::optional<std::string>& authority) {
  Status first_error;
  const auto note = [&first_error](Status status) {
    if (first_error && !status) first_error = std::move(status);
  };
  bool in_headers = false;
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find("\r\n"), bytes.size());
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 2, bytes.size()));
    if (line.empty()) break;
    if (!in_headers) {
      note(parse_request_line(line, head, authority));
      in_headers = true;
    } else {
      note(parse_header_line(line, head));
    }
  }
  return first_error;
}

Status parse_content_length(std::string_view text, uint64_t& value) {
  // from_chars of an unsigned type takes no sign, and looks at every digit of a number that is too large for it.
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool padded = text.size() > 18 && text.front() == '0';
  if (code == std::errc::invalid_argument || end != text.data() + text.size() || padded) {
    return fail(ErrorKind::kParse, "Content-Length must be one decimal number");
  }
  if (code == std::errc::result_out_of_range) value = std::numeric_limits<uint64_t>::max();  // beyond every limit
  return {};
}

Status read_framing(RequestHead& head) {
  const size_t lengths = head.count("content-length");
  const size_t codings = head.count("transfer-encoding");
  if (lengths > 1) return fail(ErrorKind::kParse, "Content-Length was sent {} times", lengths);
  if (lengths > 0 && codings > 0)
    return fail(ErrorKind::kParse, "Content-Length and Transfer-Encoding exclude each other");
  if (lengths == 1) return parse_content_length(*head.sole("content-length"), head.body.content_length);
  if (codings == 0) return {};
  if (head.version == HttpVersion::k10) return fail(ErrorKind::kParse, "HTTP/1.0 has no Transfer-Encoding");
  if (codings > 1 || ascii_lowercase(*head.sole("transfer-encoding")) != "chunked") {
    return fail(ErrorKind::kParse, "the only accepted Transfer-Encoding is chunked");
  }
  head.body.chunked = true;
  return {};
}

void read_connection(RequestHead& head) {
  bool close = false;
  bool keep_alive = false;
  for (const Header& header : head.headers) {
    if (header.name != "connection") continue;
    const std::string options = ascii_lowercase(header.value);
    for (std::string_view rest = options; !rest.empty();) {
      const size_t end = std::min(rest.find(','), rest.size());
      const std::string_view option = trim_blanks(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (option == "close") close = true;
      if (option == "keep-alive") keep_alive = true;
    }
  }
  head.keep_alive = !close && (head.version == HttpVersion::k11 || keep_alive);
}

Status read_expectation(RequestHead& head) {
  for (const Header& header : head.headers) {
    if (header.name != "expect") continue;
    if (ascii_lowercase(header.value) != "100-continue") {
      return fail(ErrorKind::kParse, "the only expectation that can be met is 100-continue");
    }
    head.expects_continue = head.version == HttpVersion::k11;
  }
  return {};
}

Status read_host(RequestHead& head, const std::optional<std::string>& authority) {
  const size_t hosts = head.count("host");
  if (hosts > 1) return fail(ErrorKind::kParse, "Host was sent {} times", hosts);
  if (hosts == 0 && head.version == HttpVersion::k11)
    return fail(ErrorKind::kParse, "an HTTP/1.1 request needs a Host");
  if (!authority) return {};
  // RFC 9112: what an absolute target names replaces the header.
  std::erase_if(head.headers, [](const Header& header) { return header.name == "host"; });
  head.headers.push_back({"host", *authority});
  return {};
}

Status parse_into(std::string_view bytes, RequestHead& head) {
  std::optional<std::string> authority;
  const Status lines = parse_lines(bytes, head, authority);
  read_connection(head);
  if (!lines) return lines;
  if (auto framing = read_framing(head); !framing) return framing;
  if (auto expectation = read_expectation(head); !expectation) return expectation;
  return read_host(head, authority);
}

}  // namespace

std::optional<std::string_view> RequestHead::sole(std::string_view lowercase_name) const {
  std::optional<std::string_view> found;
  for (const Header& header : headers) {
    if (header.name != lowercase_name) continue;
    if (found) return std::nullopt;
    found = header.value;
  }
  return found;
}

size_t RequestHead::count(std::string_view lowercase_name) const {
  return static_cast<size_t>(std::count_if(headers.begin(), headers.end(), [lowercase_name](const Header& header) {
    return header.name == lowercase_name;
  }));
}

Uuid fresh_request_id() { return Uuid::made_at(Clock::system().wall_now()); }

Uuid RequestHead::request_id() const {
  if (const auto text = sole("x-request-id")) {
    if (const auto id = Uuid::parse(*text)) return *id;
  }
  return fresh_request_id();
}

Result<std::optional<size_t>> HeadScanner::scan(std::string_view bytes) {
  while (scanned_ < bytes.size()) {
    const void* found = std::memchr(bytes.data() + scanned_, '\n', bytes.size() - scanned_);
    if (found == nullptr) {
      scanned_ = bytes.size();
      break;
    }
    const auto newline = static_cast<size_t>(static_cast<const char*>(found) - bytes.data());
    if (newline == 0 || bytes[newline - 1] != '\r') {
      return fail(ErrorKind::kParse, "a line of the request's head does not end in CRLF");
    }
    const bool empty_line = newline - 1 == line_begin_;
    scanned_ = line_begin_ = newline + 1;
    if (scanned_ > limits::kHeadBytesMax) break;
    if (empty_line) return scanned_;
  }
  if (scanned_ > limits::kHeadBytesMax) {
    return fail(ErrorKind::kParse, "the request's head is longer than {} bytes", limits::kHeadBytesMax);
  }
  return std::nullopt;
}

ParsedHead parse_head(std::string_view bytes) {
  ParsedHead parsed;
  if (auto status = parse_into(bytes, parsed.head); !status) parsed.error = status.error();
  return parsed;
}

}  // namespace kcoral::gateway
