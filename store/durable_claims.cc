// The part of DurableStore that hands out claims, and takes back those that cannot be loaded.
#include <utility>

#include "base/log.h"
#include "schema/limits.h"
#include "store/durable_store.h"

namespace kcoral::store {
namespace {

using schema::State;
using AfterCommit = Writer::AfterCommit;

/// Whether what could not be read now may be read later; otherwise it is gone or damaged.
bool is_shortage(const Error& error) {
  const Blame blame = info(error.kind).blame;
  return blame == Blame::kLoad || blame == Blame::kEnvironment;
}

}  // namespace

struct DurableStore::Claiming {
  ExecutorRef executor;
  std::function<void(Result<std::optional<Claim>>)> done;
  InFlight::Token token;
};

void DurableStore::claim(ExecutorRef executor, std::function<void(Result<std::optional<Claim>>)> done) {
  InFlight::Token token = in_flight_.enter();
  if (!token) return done(fail(closed()));
  claim_row(std::make_shared<Claiming>(Claiming{std::move(executor), std::move(done), std::move(token)}));
}

void DurableStore::claim_row(const ClaimingPtr& claiming) {
  writer_->submit({.apply = [this, claiming]() -> Result<AfterCommit> {
                     auto claimed = requests_->claim_next(claiming->executor, clock_.wall_now());
                     if (!claimed) return fail(claimed.error());
                     return AfterCommit([this, claiming, claimed = std::move(*claimed)] {
                       retry_put_backs();
                       if (!claimed) return claiming->done(std::optional<Claim>());
                       --queued_;
                       ++in_progress_;
                       const auto put_backs = put_backs_.find(claimed->claim.fence.request_id);
                       service_->post([this, claiming, claimed = *claimed,
                                       count = put_backs == put_backs_.end() ? 0 : put_backs->second] {
                         load_claim(claiming, claimed, count);
                       });
                     });
                   },
                   .failed =
                       [this, claiming](const Error& error) {
                         retry_put_backs();
                         claiming->done(fail(error));
                       },
                   .bytes = 0});
}

void DurableStore::load_claim(const ClaimingPtr& claiming, RequestTable::Claimed claimed, int put_backs) {
  if (auto filled = fill_claim(claimed); !filled) {
    const bool may_pass = is_shortage(filled.error()) && put_backs < limits::kPutBacksMax;
    return may_pass ? put_back(claiming, claimed.claim.fence, filled.error())
                    : pass_over(claiming, claimed.claim.fence, filled.error());
  }
  claiming->done(std::optional<Claim>(std::move(claimed.claim)));
}

Status DurableStore::fill_claim(RequestTable::Claimed& claimed) {
  auto reader = readers_->lease();
  if (!reader) return fail(reader.error());
  auto text = (*reader)->program_text(claimed.seq, claimed.program_bytes);
  if (!text) return fail(text.error());
  auto program = SealedMemory::copy_of(*text);
  if (!program) return fail(program.error());
  claimed.claim.program = std::move(*program);
  auto digests = (*reader)->blobs(claimed.seq);
  if (!digests) return fail(digests.error());
  for (const Digest& digest : *digests) {
    auto content = blobs_->load(digest);
    if (!content) return fail(content.error());
    claimed.claim.blobs.push_back({digest, std::move(*content)});
  }
  return {};
}

void DurableStore::pass_over(const ClaimingPtr& claiming, const Fence& fence, const Error& error) {
  const ErrorKind kind = is_shortage(error) ? ErrorKind::kEnvironment : ErrorKind::kEngine;
  const std::string reason = fmt::format("what it needs to run cannot be read: {}", error.message);
  spdlog::error("request {}: {}", fence.request_id.str(), reason);
  auto ending = std::make_shared<Ending>();
  ending->fence = fence;
  ending->completion = completion_with_error(fence.request_id, State::kFailed, {kind, reason}, reason);
  ending->token = claiming->token;
  ending->done = [this, claiming, fence](const Status& ended) {
    if (!ended) return put_back(claiming, fence, ended.error());
    claim_row(claiming);
  };
  end(std::move(ending));
}

/// Announces no work: whoever claimed again at once would meet the same shortage.
void DurableStore::put_back(const ClaimingPtr& claiming, const Fence& fence, const Error& error) {
  // In the queue from now on, as everybody else sees it: whoever claims next finds the row saying so, too.
  --in_progress_;
  ++queued_;
  undo_claim({fence, error.message}, claiming->token, [claiming, error] { claiming->done(fail(error)); });
}

void DurableStore::undo_claim(PutBack put_back, InFlight::Token token, std::function<void()> done) {
  const auto shared = std::make_shared<const PutBack>(std::move(put_back));
  writer_->submit({.apply = [this, shared, done, token]() -> Result<AfterCommit> {
                     auto undone = requests_->unclaim(shared->fence, shared->reason, clock_.wall_now());
                     if (!undone) return fail(undone.error());
                     return AfterCommit([this, shared, done, token] {
                       ++put_backs_[shared->fence.request_id];
                       done();
                     });
                   },
                   .failed =
                       [this, shared, done, token](const Error& why) {
                         spdlog::warn("request {} cannot be put back into the queue yet: {}",
                                      shared->fence.request_id.str(), why.message);
                         put_backs_delayed_.push_back(*shared);
                         done();
                       },
                   .bytes = 0});
}

/// Each claim brings those along that found no room on the disk.
void DurableStore::retry_put_backs() {
  for (PutBack& delayed : std::exchange(put_backs_delayed_, {})) {
    InFlight::Token token = in_flight_.enter();
    if (!token) return;  // the next start finds it
    undo_claim(std::move(delayed), std::move(token), [this] { work_arrived_ = true; });
  }
}

}  // namespace kcoral::store
