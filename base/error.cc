#include "base/error.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kcoral {

const ErrorKindInfo& info(ErrorKind kind) {
  static constexpr std::array<ErrorKindInfo, 15> kTable{{
      {"parse", 400, Blame::kClient, false},
      {"unauthorized", 401, Blame::kClient, false},
      {"forbidden", 403, Blame::kClient, false},
      {"not_found", 404, Blame::kClient, false},
      {"method_not_allowed", 405, Blame::kClient, false},
      {"conflict", 409, Blame::kClient, false},
      {"cancelled", 409, Blame::kClient, false},
      {"gone", 410, Blame::kClient, false},
      {"request_too_large", 413, Blame::kClient, false},
      {"rate_limited", 429, Blame::kClient, true},
      {"busy", 503, Blame::kLoad, true},
      {"timeout", 504, Blame::kClient, false},
      {"engine", 500, Blame::kOurselves, false},
      {"response_too_large", 500, Blame::kClient, false},
      {"engine", 500, Blame::kEnvironment, false},
  }};
  return kTable.at(static_cast<size_t>(kind));
}

tl::unexpected<Error> fail_errno(std::string_view call, std::string_view subject, ErrorKind kind) {
  const int number = errno;
  if (subject.empty()) return fail(kind, "{}: {}", call, std::strerror(number));
  return fail(kind, "{} {}: {}", call, subject, std::strerror(number));
}

void invariant_broken(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "kcoral: broken invariant at %s:%d: %s\n", file, line, expression);
  std::abort();
}

}  // namespace kcoral
