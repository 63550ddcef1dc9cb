// Who programs run as: never uid 0.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/error.h"

namespace kcoral::server {

struct Identity {
  uid_t uid = 0;
  gid_t gid = 0;
  std::string name;
};

/// For a server that is root: `wanted`, or the user kcoral if there is one, else nobody. For any other server: the
/// server's own user, and a `wanted` that differs is an error.
Result<Identity> sandbox_identity(const std::string& wanted);

}  // namespace kcoral::server
