#include "gateway/request_line.h"

#include <exception>

#include "gateway/pistache.h"

namespace kcoral::gateway {

Result<std::string> path_of_target(std::string_view target) {
  try {
    std::string head = "GET ";
    head.append(target).append(" HTTP/1.1\r\n\r\n");
    Pistache::Http::RequestParser parser(head.size());
    if (!parser.feed(head.data(), head.size()) || parser.parse() != Pistache::Http::Private::State::Done) {
      return fail(ErrorKind::kParse, "the request target cannot be parsed");
    }
    return parser.request.resource();
  } catch (const std::exception& error) {
    return fail(ErrorKind::kParse, "the request target cannot be parsed: {}", error.what());
  }
}

}  // namespace kcoral::gateway
