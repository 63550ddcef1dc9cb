#include "store/fair_queue.h"

#include <algorithm>
#include <ext/pb_ds/assoc_container.hpp>
#include <ext/pb_ds/tree_policy.hpp>
#include <limits>
#include <utility>

#include "base/error.h"

namespace kcoral::store {
namespace {

using Microseconds = std::chrono::microseconds;

/// The queued items of one client: the highest priority first, then by submission. It counts what is ahead of a key.
using Key = std::pair<int, int64_t>;  // -priority, seq
using ClientItems = __gnu_pbds::tree<Key, __gnu_pbds::null_type, std::less<>, __gnu_pbds::rb_tree_tag,
                                     __gnu_pbds::tree_order_statistics_node_update>;

/// A client's place among those of one priority. Its deficit is always in (0, quantum]: what it owes beyond is in the
/// round in which it is served next.
struct Share {
  int64_t round = 0;
  uint64_t turn = 0;  // within the round
  Microseconds deficit = FairQueue::kQuantum;
  Microseconds estimate = FairQueue::kQuantum;  // of what its next program takes
  size_t queued = 0;
  size_t running = 0;
};

/// The clients of one priority.
class Ring {
 public:
  bool is_empty() const { return waiting_.empty(); }
  const std::string& first_client() const { return *std::get<2>(*waiting_.begin()); }
  Microseconds estimate_for(const std::string& client) { return shares_[client].estimate; }

  void queue(const std::string& client) {
    const auto share = shares_.try_emplace(client).first;
    if (share->second.queued++ > 0) return;
    forget_debt(*share);
    enter(*share);
  }

  void unqueue(const std::string& client) {
    const auto share = shares_.find(client);
    KCORAL_CHECK(share != shares_.end() && share->second.queued > 0);
    if (--share->second.queued > 0) return;
    waiting_.erase(place_of(*share));
    forget_or_remember(share);
  }

  /// Requires: it is queued.
  void begin(const std::string& client, Microseconds cost) {
    const auto share = shares_.find(client);
    ++share->second.running;
    round_ = std::max(round_, share->second.round);
    charge(*share, cost);
    unqueue(client);
  }

  /// `not_charged`: what it took beyond what it was charged for. Requires: it runs.
  void end(const std::string& client, Microseconds not_charged, std::optional<Microseconds> took) {
    const auto share = shares_.find(client);
    KCORAL_CHECK(share != shares_.end() && share->second.running > 0);
    if (took) share->second.estimate = (3 * share->second.estimate + *took) / 4;
    charge(*share, not_charged);
    --share->second.running;
    if (share->second.queued == 0) forget_or_remember(share);
  }

 private:
  using Shares = std::unordered_map<std::string, Share>;
  using Place = std::tuple<int64_t, uint64_t, const std::string*>;

  static Place place_of(const Shares::value_type& share) {
    return {share.second.round, share.second.turn, &share.first};
  }

  /// Behind all who wait already, and with one quantum; one that still owes comes in the round in which it does not.
  void enter(Shares::value_type& share) {
    const int64_t round = waiting_.empty() ? round_ : round_ + 1;
    if (share.second.round < round) {
      share.second.round = round;
      share.second.deficit = FairQueue::kQuantum;
    }
    share.second.turn = ++turns_;
    waiting_.insert(place_of(share));
  }

  void charge(Shares::value_type& share, Microseconds cost) {
    constexpr auto kQuantum = FairQueue::kQuantum;
    const Place old_place = place_of(share);
    share.second.deficit -= cost;
    const int64_t old_round = share.second.round;
    if (share.second.deficit <= Microseconds(0)) {
      const int64_t rounds = -share.second.deficit / kQuantum + 1;
      share.second.round += rounds;
      share.second.deficit += rounds * kQuantum;
    } else if (share.second.deficit > kQuantum) {  // it was charged too much before
      const int64_t rounds = std::clamp<int64_t>((share.second.deficit - Microseconds(1)) / kQuantum, 0,
                                                 std::max<int64_t>(0, share.second.round - round_));
      share.second.round -= rounds;
      share.second.deficit = std::min(share.second.deficit - rounds * kQuantum, kQuantum);
    }
    if (share.second.round == old_round) return;
    share.second.turn = ++turns_;
    if (share.second.queued > 0) {
      waiting_.erase(old_place);
      waiting_.insert(place_of(share));
    }
  }

  /// A client that owes nothing is like a new one.
  void forget_or_remember(Shares::iterator share) {
    if (share->second.running > 0) return;
    debtors_.insert(place_of(*share));
    while (!debtors_.empty()) {
      const auto least = debtors_.begin();
      if (std::get<0>(*least) > round_ && debtors_.size() <= FairQueue::kDebtorsMax) return;
      const std::string client = *std::get<2>(*least);
      debtors_.erase(least);
      shares_.erase(client);
    }
  }
  void forget_debt(const Shares::value_type& share) { debtors_.erase(place_of(share)); }

  int64_t round_ = 0;  // that is being served
  uint64_t turns_ = 0;
  Shares shares_;
  std::set<Place> waiting_;  // clients with something queued
  std::set<Place> debtors_;  // clients with nothing queued and nothing running
};

}  // namespace

struct FairQueue::Kind {
  struct Entry {
    const std::string* client;  // the key in `clients`
    int priority;
    SteadyTime submitted;
    SteadyTime queued;
  };
  struct Started {
    Run run;
    Microseconds charged;
    enum class Turn { kNotOldest, kOldest, kOldestByAge } turn;  // whether its share was due to its age alone
  };
  std::map<int, Ring, std::greater<>> rings;  // by priority
  std::unordered_map<std::string, ClientItems> clients;
  std::map<int64_t, Entry> by_seq;
  std::unordered_map<Uuid, Started> started;
  Microseconds oldest_credit{0};  // executor time that is due to whoever is the oldest

  bool is_oldest_due() const { return oldest_credit >= FairQueue::kQuantum; }

  Started::Turn turn_of(int64_t seq) const {
    if (seq != by_seq.begin()->first) return Started::Turn::kNotOldest;
    return is_oldest_due() ? Started::Turn::kOldestByAge : Started::Turn::kOldest;
  }

  /// `time` is given out, or, if it is negative, was not after all.
  void give_out(Microseconds time, Started::Turn turn) {
    if (turn == Started::Turn::kOldest) return;
    oldest_credit += time / FairQueue::kOldestShare;
    if (turn == Started::Turn::kOldestByAge) oldest_credit -= time;
  }

  Item item_of(std::map<int64_t, Entry>::const_iterator queued, bool for_several_gpus) const {
    const auto& [seq, entry] = *queued;
    return Item{seq, *entry.client, entry.priority, for_several_gpus, entry.submitted, entry.queued};
  }

  void end(const Started& over, std::optional<Microseconds> took) {
    const Microseconds cost = took ? std::max(*took, FairQueue::kCostMin) : Microseconds(0);
    give_out(cost - over.charged, over.turn);
    // Whoever was the oldest anyway had what was due to it, and owes nothing.
    if (over.turn == Started::Turn::kOldest && oldest_credit > Microseconds(0)) {
      oldest_credit -= std::min(oldest_credit, cost - cost / FairQueue::kOldestShare);
    }
    const Item& item = over.run.item;
    rings[item.priority].end(item.client, cost - over.charged, took ? std::optional(cost) : std::nullopt);
  }

  void remove(const Item& item) {
    KCORAL_CHECK(by_seq.erase(item.seq) == 1);
    const auto client = clients.find(item.client);
    client->second.erase(Key(-item.priority, item.seq));
    if (client->second.empty()) clients.erase(client);
  }
};

FairQueue::FairQueue() {
  for (auto& kind : kinds_) kind = std::make_unique<Kind>();
}

FairQueue::~FairQueue() = default;

void FairQueue::push(const Item& item) {
  const MutexLock lock(mutex_);
  Kind& kind = *kinds_[item.for_several_gpus];
  const auto client = kind.clients.try_emplace(item.client).first;
  client->second.insert(Key(-item.priority, item.seq));
  const Kind::Entry entry{&client->first, item.priority, item.submitted, item.queued};
  const bool is_new = kind.by_seq.emplace(item.seq, entry).second;
  KCORAL_CHECK(is_new);
  kind.rings[item.priority].queue(item.client);
}

FairQueue::Item FairQueue::remove(const Item& item) {
  const MutexLock lock(mutex_);
  Kind& kind = *kinds_[item.for_several_gpus];
  const auto entry = kind.by_seq.find(item.seq);
  KCORAL_CHECK(entry != kind.by_seq.end());
  Item removed = kind.item_of(entry, item.for_several_gpus);
  kind.remove(item);
  kind.rings[item.priority].unqueue(item.client);
  return removed;
}

std::optional<FairQueue::Item> FairQueue::next(bool for_several_gpus) const {
  const MutexLock lock(mutex_);
  const Kind& kind = *kinds_[for_several_gpus];
  if (kind.by_seq.empty()) return std::nullopt;
  if (kind.is_oldest_due()) return kind.item_of(kind.by_seq.begin(), for_several_gpus);
  const auto ring =
      std::find_if(kind.rings.begin(), kind.rings.end(), [](const auto& each) { return !each.second.is_empty(); });
  const std::string& client = ring->second.first_client();
  const ClientItems& items = kind.clients.at(client);
  const auto first = items.lower_bound(Key(-ring->first, std::numeric_limits<int64_t>::min()));
  return kind.item_of(kind.by_seq.find(first->second), for_several_gpus);
}

void FairQueue::start(const Uuid& request_id, const Item& item, SteadyTime now) {
  const MutexLock lock(mutex_);
  Kind& kind = *kinds_[item.for_several_gpus];
  Ring& ring = kind.rings[item.priority];
  const Kind::Started started{{item, now}, ring.estimate_for(item.client), kind.turn_of(item.seq)};
  kind.remove(item);
  ring.begin(item.client, started.charged);
  kind.give_out(started.charged, started.turn);
  const bool is_new = kind.started.emplace(request_id, started).second;
  KCORAL_CHECK(is_new);
}

void FairQueue::undo_start(const Uuid& request_id, const Item& item) {
  {
    const MutexLock lock(mutex_);
    Kind& kind = *kinds_[item.for_several_gpus];
    const auto started = kind.started.extract(request_id);
    KCORAL_CHECK(!started.empty());
    kind.end(started.mapped(), std::nullopt);
  }
  push(item);
}

void FairQueue::ended(const Uuid& request_id, std::chrono::microseconds took) {
  const MutexLock lock(mutex_);
  for (const auto& kind : kinds_) {
    const auto started = kind->started.extract(request_id);
    if (started.empty()) continue;
    kind->end(started.mapped(), took > Microseconds(0) ? std::optional(took) : std::nullopt);
  }
}

std::optional<FairQueue::Run> FairQueue::run_of(const Uuid& request_id) const {
  const MutexLock lock(mutex_);
  for (const auto& kind : kinds_) {
    const auto started = kind->started.find(request_id);
    if (started != kind->started.end()) return started->second.run;
  }
  return std::nullopt;
}

size_t FairQueue::size() const {
  const MutexLock lock(mutex_);
  size_t size = 0;
  for (const auto& kind : kinds_) size += kind->by_seq.size();
  return size;
}

size_t FairQueue::size_of(const std::string& client) const {
  const MutexLock lock(mutex_);
  size_t size = 0;
  for (const auto& kind : kinds_) {
    const auto found = kind->clients.find(client);
    if (found != kind->clients.end()) size += found->second.size();
  }
  return size;
}

std::optional<SteadyTime> FairQueue::oldest_submitted() const {
  const MutexLock lock(mutex_);
  std::optional<SteadyTime> oldest;
  for (const auto& kind : kinds_) {
    if (kind->by_seq.empty()) continue;
    const SteadyTime submitted = kind->by_seq.begin()->second.submitted;
    oldest = std::min(oldest.value_or(submitted), submitted);
  }
  return oldest;
}

uint64_t FairQueue::position(const Item& item) const {
  const MutexLock lock(mutex_);
  const auto& clients = kinds_[item.for_several_gpus]->clients;
  const auto client = clients.find(item.client);
  return client == clients.end() ? 0 : client->second.order_of_key(Key(-item.priority, item.seq));
}

}  // namespace kcoral::store
