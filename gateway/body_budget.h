// What all request bodies together may hold on their way from their sockets to the store: bytes and blobs.
//
// What was taken is given back exactly once, whatever becomes of the body: admitted, refused, or abandoned by its
// client. A body that finds no room is refused at once; nothing waits here.
//
// BodyBudget is thread-safe. A BodyShare has one owner at a time, who may be another thread than the one before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/mutex.h"

namespace kcoral::gateway {

class BodyBudget {
 public:
  BodyBudget(uint64_t bytes_max, size_t blobs_max) : bytes_max_(bytes_max), blobs_max_(blobs_max) {}

  /// Whether a new body of `bytes` would find room as things are; nothing is taken. kBusy if not, and always while
  /// everything is taken.
  Status check_room(uint64_t bytes) const;

  uint64_t bytes_taken() const;
  size_t blobs_taken() const;
  size_t blobs_max() const { return blobs_max_; }

 private:
  friend class BodyShare;

  Status take(uint64_t bytes, size_t blobs);
  void give_back(uint64_t bytes, size_t blobs);

  const uint64_t bytes_max_;
  const size_t blobs_max_;
  mutable Mutex mutex_;
  uint64_t bytes_ KCORAL_GUARDED_BY(mutex_) = 0;  // at most bytes_max_
  size_t blobs_ KCORAL_GUARDED_BY(mutex_) = 0;    // at most blobs_max_
};

/// One body's part of the budget, given back when it is destroyed or released.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyShare() { release(); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  /// kBusy if the budget is used up; nothing is taken then.
  Status take_bytes(uint64_t bytes);
  /// The same; kRequestTooLarge if this body alone has used it up.
  Status take_blob();

  /// Gives everything back; the second call does nothing.
  void release();

 private:
  const std::shared_ptr<BodyBudget> budget_;
  uint64_t bytes_ = 0;
  size_t blobs_ = 0;
};

}  // namespace kcoral::gateway
