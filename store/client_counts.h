// How many requests of each client have ended, for as many clients as matter: names are a client's choice, so neither
// memory nor what is shown may grow with them.
//
// It promises: the sum of all that is shown is exact; it remembers at most limits::kClientsCountedMax clients. When
// more come, the half that has the least is forgotten at once, which costs each newcomer a few steps, and adds to the
// others from then on. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "store/figures.h"

namespace kcoral::store {

class ClientCounts {
 public:
  void add(const std::string& client);
  ClientFigures figures() const;

 private:
  using Counts = std::unordered_map<std::string, uint64_t>;
  /// All clients, those with the most before place `count` in no order.
  std::vector<Counts::const_iterator> with_busiest_first(size_t count) const KCORAL_REQUIRES(mutex_);
  void forget_half() KCORAL_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Counts counts_ KCORAL_GUARDED_BY(mutex_);
  uint64_t total_ KCORAL_GUARDED_BY(mutex_) = 0;  // of the forgotten, too
};

}  // namespace kcoral::store
