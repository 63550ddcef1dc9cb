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

std::optional<Identity> user_of(uid_t uid) {
  return look_up([&](passwd* entry, char* buffer, size_t size, passwd** found) {
    return ::getpwuid_r(uid, entry, buffer, size, found);
  });
}

constexpr const char* kNobody = "nobody";
constexpr uid_t kDynamicUidMin = 61184, kDynamicUidMax = 65519;

}  // namespace

Result<Identity> sandbox_identity(const std::string& wanted) {
  if (const uid_t self = ::geteuid(); self != 0) {
    Identity identity = user_of(self).value_or(Identity{self, ::getegid(), std::to_string(self)});
    if (!wanted.empty() && wanted != identity.name) {
      return fail(ErrorKind::kEnvironment,
                  "--sandbox-user {}: only a server that runs as root can change users; this one runs as {}", wanted,
                  identity.name);
    }
    return identity;
  }
  const std::vector<std::string> candidates =
      wanted.empty() ? std::vector<std::string>{"kcoral", kNobody} : std::vector<std::string>{wanted};
  for (const std::string& name : candidates) {
    const auto user = user_named(name);
    if (!user) continue;
    if (user->uid == 0) return fail(ErrorKind::kEnvironment, "--sandbox-user {}: programs never run as uid 0", name);
    return *user;
  }
  return fail(ErrorKind::kEnvironment, "there is no user '{}' for programs to run as (--sandbox-user)",
              candidates.back());
}

std::vector<uid_t> slot_uids(const Identity& identity, size_t count) {
  std::vector<uid_t> uids;
  if (::geteuid() == 0 && identity.name == kNobody) {
    for (uid_t uid = kDynamicUidMin; uids.size() < count && uid <= kDynamicUidMax; ++uid) {
      if (!user_of(uid)) uids.push_back(uid);
    }
  }
  uids.resize(count, identity.uid);
  return uids;
}

}  // namespace kcoral::server
