#include "store/client_counts.h"

#include <algorithm>
#include <tuple>

#include "schema/limits.h"

namespace kcoral::store {

static_assert(limits::kClientsNamedMax <= limits::kClientsCountedMax / 2, "who is named is not forgotten");

void ClientCounts::add(const std::string& client) {
  const MutexLock lock(mutex_);
  ++total_;
  if (const auto known = counts_.find(client); known != counts_.end()) {
    ++known->second;
    return;
  }
  if (counts_.size() >= limits::kClientsCountedMax) forget_half();
  counts_.emplace(client, 1);
}

std::vector<ClientCounts::Counts::const_iterator> ClientCounts::with_busiest_first(size_t count) const {
  std::vector<Counts::const_iterator> clients;
  clients.reserve(counts_.size());
  for (auto each = counts_.begin(); each != counts_.end(); ++each) clients.push_back(each);
  if (clients.size() > count) {
    std::nth_element(clients.begin(), clients.begin() + static_cast<std::ptrdiff_t>(count), clients.end(),
                     [](const auto& a, const auto& b) { return a->second > b->second; });
  }
  return clients;
}

void ClientCounts::forget_half() {
  constexpr size_t kKept = limits::kClientsCountedMax / 2;
  const auto clients = with_busiest_first(kKept);
  for (size_t i = kKept; i < clients.size(); ++i) counts_.erase(clients[i]);
}

ClientFigures ClientCounts::figures() const {
  ClientFigures figures;
  {
    const MutexLock lock(mutex_);
    auto clients = with_busiest_first(limits::kClientsNamedMax);
    clients.resize(std::min(clients.size(), limits::kClientsNamedMax));
    figures.ended_of_others = total_;
    for (const auto& client : clients) {
      figures.busiest.push_back({client->first, client->second});
      figures.ended_of_others -= client->second;
    }
  }
  std::sort(figures.busiest.begin(), figures.busiest.end(), [](const ClientFigure& a, const ClientFigure& b) {
    return std::tie(b.ended, a.client) < std::tie(a.ended, b.client);
  });
  return figures;
}

}  // namespace kcoral::store
