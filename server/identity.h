// Who programs run as: never uid 0.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

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

/// The uid of each of `count` slots. What the kernel counts for each user (processes, pipes, descriptors in flight,
/// locked memory) one slot's program can use up for all slots of its user. So where the server is root and nobody in
/// particular was chosen, each slot has a uid of its own, without a name, from the range that systemd.exec(5) sets
/// aside for that (DynamicUser=). Else all have `identity`'s.
std::vector<uid_t> slot_uids(const Identity& identity, size_t count);

}  // namespace kcoral::server
