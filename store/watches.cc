#include "store/watches.h"

#include <algorithm>
#include <utility>

namespace kcoral::store {

Watches::Id Watches::add(const Uuid& request_id, Done done) {
  const MutexLock lock(mutex_);
  const Id id = next_id_++;
  watches_.emplace(id, Watch{request_id, std::move(done), {}});
  by_request_[request_id].push_back(id);
  return id;
}

void Watches::remove(Id id) {
  const MutexLock lock(mutex_);
  const auto found = watches_.find(id);
  if (found == watches_.end()) return;
  if (found->second.firing == std::thread::id()) {
    const auto waiting = by_request_.find(found->second.request_id);
    std::erase(waiting->second, id);
    if (waiting->second.empty()) by_request_.erase(waiting);
    watches_.erase(found);
    return;
  }
  if (found->second.firing == std::this_thread::get_id()) return;
  while (watches_.contains(id)) fired_.wait(mutex_);
}

void Watches::fire(Id id, const Result<Store::AnswerPtr>& answer) {
  Done done;
  {
    const MutexLock lock(mutex_);
    const auto found = watches_.find(id);
    if (found == watches_.end() || found->second.firing != std::thread::id()) return;
    found->second.firing = std::this_thread::get_id();
    const auto waiting = by_request_.find(found->second.request_id);
    std::erase(waiting->second, id);
    if (waiting->second.empty()) by_request_.erase(waiting);
    done = std::move(found->second.done);
  }
  done(answer);
  done = nullptr;  // what it holds goes before anybody may rely on its having gone
  {
    const MutexLock lock(mutex_);
    watches_.erase(id);
  }
  fired_.notify_all();
}

void Watches::fire_all(const Uuid& request_id, const Result<Store::AnswerPtr>& answer) {
  std::vector<Id> ids;
  {
    const MutexLock lock(mutex_);
    const auto found = by_request_.find(request_id);
    if (found == by_request_.end()) return;
    ids = found->second;
  }
  for (const Id id : ids) fire(id, answer);
}

void Watches::fire_rest(const Result<Store::AnswerPtr>& answer) {
  std::vector<Id> ids;
  {
    const MutexLock lock(mutex_);
    for (const auto& [id, watch] : watches_) ids.push_back(id);
  }
  for (const Id id : ids) fire(id, answer);
}

}  // namespace kcoral::store
