// A browser must not be a way in (contract section 1). Thread-safe: immutable once made.
//
// Two doors are closed. A page of another site that sends a request here says so in `Origin`. A page whose site's name
// was re-pointed to this server's address (DNS rebinding) looks like the server's own, but names itself in `Host`.
//
// Own origin: `http` or `https`, with exactly the authority that `Host` names, whose host is one that nobody else can
// point here: an IP address, a loopback name, the name that the server was told to listen on, the machine's own name,
// or one of the allowed hosts. On a server bound to a loopback address every request's `Host` must moreover be a
// loopback name or address, or an allowed host; the port does not matter, so that a forwarded port works. A request
// without `Host` (HTTP/1.0) does not come from a browser and passes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gateway/http_types.h"

namespace kcoral::gateway {

class OriginPolicy {
 public:
  /// `bound_host` is what the server was told to listen on; `allowed_hosts` are names, with a port if only that is
  /// meant.
  OriginPolicy(std::string_view bound_host, bool bound_to_loopback, std::vector<std::string> allowed_hosts);

  /// kForbidden with a message that says which header was refused and what the operator may do.
  Status check(const RequestHead& head) const;

 private:
  bool is_allowed(std::string_view authority) const;
  bool is_own_name(std::string_view authority) const;

  std::string bound_host_;
  std::string machine_name_;
  bool bound_to_loopback_;
  std::vector<std::string> allowed_hosts_;
};

}  // namespace kcoral::gateway
