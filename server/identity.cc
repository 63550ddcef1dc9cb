#include "server/identity.h"

#include <pwd.h>
#include <unistd.h>

#include <optional>
#include <vector>

namespace kcoral::server {
namespace {

/// Both look-ups of passwd have this shape.
template <typename Lookup>
std::optional<Identity> look_up(Lookup lookup) {
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (lookup(&entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return std::nullopt;
  return Identity{entry.pw_uid, entry.pw_gid, entry.pw_name};
}

std::optional<Identity> user_named(const std::string& name) {
  return look_up([&](passwd* entry, char* buffer, size_t size, passwd** found) {
    return ::getpwnam_r(name.c_str(), entry, buffer, size, found);
  });
}

}  // namespace

Result<Identity> sandbox_identity(const std::string& wanted) {
  if (const uid_t self = ::geteuid(); self != 0) {
    auto own = look_up([&](passwd* entry, char* buffer, size_t size, passwd** found) {
      return ::getpwuid_r(self, entry, buffer, size, found);
    });
    Identity identity = own.value_or(Identity{self, ::getegid(), std::to_string(self)});
    if (!wanted.empty() && wanted != identity.name) {
      return fail(ErrorKind::kEnvironment,
                  "--sandbox-user {}: only a server that runs as root can change users; this one runs as {}", wanted,
                  identity.name);
    }
    return identity;
  }
  const std::vector<std::string> candidates =
      wanted.empty() ? std::vector<std::string>{"kcoral", "nobody"} : std::vector<std::string>{wanted};
  for (const std::string& name : candidates) {
    const auto user = user_named(name);
    if (!user) continue;
    if (user->uid == 0) return fail(ErrorKind::kEnvironment, "--sandbox-user {}: programs never run as uid 0", name);
    return *user;
  }
  return fail(ErrorKind::kEnvironment, "there is no user '{}' for programs to run as (--sandbox-user)",
              candidates.back());
}

}  // namespace kcoral::server
