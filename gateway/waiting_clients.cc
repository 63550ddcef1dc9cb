#include "gateway/waiting_clients.h"

namespace kcoral::gateway {

bool WaitingClients::enter(const std::shared_ptr<WaitingClient>& client, std::shared_ptr<Mailbox> mailbox) {
  const MutexLock lock(mutex_);
  if (releasing_) return false;
  waiting_.emplace(client.get(), Waiting{client, std::move(mailbox)});
  return true;
}

void WaitingClients::leave(const WaitingClient* client) {
  const MutexLock lock(mutex_);
  waiting_.erase(client);
}

void WaitingClients::release() {
  std::unordered_map<const WaitingClient*, Waiting> waiting;
  {
    const MutexLock lock(mutex_);
    releasing_ = true;
    waiting = waiting_;
  }
  for (auto& [address, each] : waiting) {
    each.mailbox->post([weak = each.client] {
      if (const auto client = weak.lock()) client->release();
    });
  }
}

}  // namespace kcoral::gateway
