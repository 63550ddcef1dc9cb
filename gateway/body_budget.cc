#include "gateway/body_budget.h"

#include <algorithm>
#include <utility>

namespace kcoral::gateway {
namespace {

tl::unexpected<Error> no_room() {
  return fail(ErrorKind::kBusy, "the server is receiving as much as it can hold; nothing was admitted");
}

}  // namespace

Status BodyBudget::check_room(uint64_t bytes) const {
  const MutexLock lock(mutex_);
  if (std::max<uint64_t>(bytes, 1) > bytes_max_ - bytes_) return no_room();
  return {};
}

uint64_t BodyBudget::bytes_taken() const {
  const MutexLock lock(mutex_);
  return bytes_;
}

size_t BodyBudget::blobs_taken() const {
  const MutexLock lock(mutex_);
  return blobs_;
}

Status BodyBudget::take(uint64_t bytes, size_t blobs) {
  const MutexLock lock(mutex_);
  if (bytes > bytes_max_ - bytes_ || blobs > blobs_max_ - blobs_) return no_room();
  bytes_ += bytes;
  blobs_ += blobs;
  return {};
}

void BodyBudget::give_back(uint64_t bytes, size_t blobs) {
  const MutexLock lock(mutex_);
  KCORAL_CHECK(bytes <= bytes_ && blobs <= blobs_);
  bytes_ -= bytes;
  blobs_ -= blobs;
}

Status BodyShare::take_bytes(uint64_t bytes) {
  if (auto taken = budget_->take(bytes, 0); !taken) return taken;
  bytes_ += bytes;
  return {};
}

Status BodyShare::take_blob() {
  if (blobs_ == budget_->blobs_max()) {
    return fail(ErrorKind::kRequestTooLarge,
                "this server has descriptors for {} blobs in one request; upload fewer, or raise "
                "its limit (ulimit -n)",
                blobs_);
  }
  if (auto taken = budget_->take(0, 1); !taken) return taken;
  ++blobs_;
  return {};
}

void BodyShare::release() { budget_->give_back(std::exchange(bytes_, 0), std::exchange(blobs_, 0)); }

}  // namespace kcoral::gateway
