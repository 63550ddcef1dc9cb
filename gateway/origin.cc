#include "gateway/origin.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <unistd.h>

#include <optional>

#include "gateway/ascii.h"
#include "gateway/listen_address.h"

namespace kcoral::gateway {
namespace {

/// "host", "host:port", "[v6]", "[v6]:port" → the host in lowercase, without brackets and a final dot; nullopt if
/// malformed.
std::optional<std::string> host_of(std::string_view authority) {
  std::string_view host = authority;
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    host = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
    if (!port.empty() && !port.starts_with(':')) return std::nullopt;
  } else if (const size_t colon = authority.find(':'); colon != std::string_view::npos) {
    host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (!port.empty() && port.find_first_not_of("0123456789", 1) != std::string_view::npos) return std::nullopt;
  if (host.ends_with('.')) host.remove_suffix(1);
  if (host.empty()) return std::nullopt;
  return ascii_lowercase(host);
}

bool is_ip_address(const std::string& host) {
  unsigned char address[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), address) == 1 || inet_pton(AF_INET6, host.c_str(), address) == 1;
}

std::string machine_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return {};
  return ascii_lowercase(name);
}

/// The authority of "http://authority" or "https://authority"; nullopt for anything else ("null" among it).
std::optional<std::string> authority_of_origin(std::string_view origin) {
  const std::string lower = ascii_lowercase(origin);
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (lower.starts_with(scheme)) return lower.substr(scheme.size());
  }
  return std::nullopt;
}

}  // namespace

OriginPolicy::OriginPolicy(std::string_view bound_host, bool bound_to_loopback, std::vector<std::string> allowed_hosts)
    : bound_host_(ascii_lowercase(bound_host)),
      machine_name_(machine_name()),
      bound_to_loopback_(bound_to_loopback),
      allowed_hosts_(std::move(allowed_hosts)) {
  for (std::string& allowed : allowed_hosts_) allowed = ascii_lowercase(allowed);
}

bool OriginPolicy::is_allowed(std::string_view authority) const {
  const std::string whole = ascii_lowercase(authority);
  const auto host = host_of(authority);
  return std::any_of(allowed_hosts_.begin(), allowed_hosts_.end(),
                     [&](const std::string& allowed) { return allowed == whole || (host && allowed == *host); });
}

bool OriginPolicy::is_own_name(std::string_view authority) const {
  const auto host = host_of(authority);
  if (!host) return false;
  return is_ip_address(*host) || is_loopback_host(*host) || *host == bound_host_ || *host == machine_name_ ||
         is_allowed(authority);
}

Status OriginPolicy::check(const RequestHead& head) const {
  const auto host = head.sole("host");
  if (bound_to_loopback_ && host) {
    const auto name = host_of(*host);
    if (!name || (!is_loopback_host(*name) && !is_allowed(*host))) {
      return fail(ErrorKind::kForbidden,
                  "this server listens on a loopback address and the request's Host is not one; the operator can allow "
                  "it with --allowed-host");
    }
  }
  if (head.count("origin") == 0) return {};
  const auto origin = head.sole("origin");
  const auto authority = origin ? authority_of_origin(*origin) : std::nullopt;
  if (!host || !authority || *authority != ascii_lowercase(*host) || !is_own_name(*host)) {
    return fail(ErrorKind::kForbidden, "the request's Origin is not this server's own");
  }
  return {};
}

}  // namespace kcoral::gateway
