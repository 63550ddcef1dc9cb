// One vocabulary of failure for the whole service. Every value says who caused it, which HTTP status it becomes and
// whether sending the same request again can help.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace kcoral {

/// The kinds of section 7 of the wire contract, and kEnvironment, which never reaches the wire under its own name.
enum class ErrorKind {
  kParse,             // client · 400 · no
  kUnauthorized,      // client · 401 · no
  kForbidden,         // client · 403 · no
  kNotFound,          // client · 404 · no
  kMethodNotAllowed,  // client · 405 · no
  kConflict,          // client · 409 · no
  kCancelled,         // client · 409 · no
  kGone,              // client · 410 · no
  kRequestTooLarge,   // client · 413 · no
  kRateLimited,       // client · 429 · later
  kBusy,              // service load · 503 · later
  kTimeout,           // the client's program · 504 · no
  kEngine,            // our own code · 500 · no
  kResponseTooLarge,  // the client's program · 500 · no
  kEnvironment,       // what the operator installed or configured · 500 "engine" · no
};

enum class Blame { kClient, kLoad, kEnvironment, kOurselves };

struct ErrorKindInfo {
  std::string_view wire_name;
  int http_status;
  Blame blame;
  bool retry_later;
};

const ErrorKindInfo& info(ErrorKind kind);

struct Error {
  ErrorKind kind;
  std::string message;  // what was wrong, where, and what is accepted; UTF-8, for the person who reads it
};

/// A value or the Error that prevented it. Ignoring one is a compiler error.
template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
};

using Status = Result<void>;

/// `return fail(ErrorKind::kParse, "instruction {}: no field 'op'", index);`
template <typename... Args>
tl::unexpected<Error> fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return tl::unexpected<Error>(Error{kind, fmt::format(format, std::forward<Args>(args)...)});
}

/// Hands an error on to the caller's own Result type.
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

/// The failure of a system call, from errno: `return fail_errno("open", path);`
tl::unexpected<Error> fail_errno(std::string_view call, std::string_view subject = {},
                                 ErrorKind kind = ErrorKind::kEnvironment);

/// A broken invariant of our own code: says which and where, then aborts. Stays on in every build.
[[noreturn]] void invariant_broken(const char* expression, const char* file, int line);

#define KCORAL_CHECK(expression) ((expression) ? void(0) : ::kcoral::invariant_broken(#expression, __FILE__, __LINE__))

}  // namespace kcoral
