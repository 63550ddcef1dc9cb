// Look-ups on connections of their own, beside the writer.
//
// A Reader belongs to one thread at a time; Readers is thread-safe and hands them out. Each look-up sees one committed
// state of the database. Readers never write and never move the write-ahead log.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "store/answers.h"
#include "store/fair_queue.h"
#include "store/sqlite.h"
#include "store/store.h"

namespace kcoral::store {

class Reader {
 public:
  static Result<std::unique_ptr<Reader>> open(const std::string& path);

  /// A row, and where it stands in the queue if it is queued: its `queue_position` is the caller's to find.
  struct StatusRow {
    RequestStatus status;
    FairQueue::Item item;
  };
  /// kNotFound.
  Result<StatusRow> status(const Uuid& request_id);
  Result<schema::State> state(const Uuid& request_id);

  struct HistoryRows {
    std::vector<StatusRow> rows;
    std::optional<HistoryCursor> next;
  };
  Result<HistoryRows> history(const HistoryQuery& query);

  /// Where the output of a request is to be found.
  struct OutputPlace {
    schema::State state = schema::State::kQueued;
    std::optional<std::string> text;   // of a run whose answer does not have it
    std::optional<KeptAnswer> answer;  // of a terminal request, unless it was pruned
  };
  Result<OutputPlace> output(const Uuid& request_id, OutputStream stream);

  /// What an answer or an attachment depends on.
  struct Standing {
    schema::State state = schema::State::kQueued;
    std::string owner;
    Digest program_sha256;
    std::optional<KeptAnswer> answer;  // of a terminal request, unless it was pruned
  };
  Result<std::optional<Standing>> standing(const Uuid& request_id);

  Result<std::string> program_text(int64_t seq, uint64_t program_bytes);
  /// As it was submitted. kNotFound.
  Result<std::string> program_text(const Uuid& request_id);
  Result<std::vector<Digest>> blobs(int64_t seq);

  struct OutboxRow {
    int64_t id = 0;
    Uuid request_id;
    uint64_t first_seq = 0;
    std::string records;
  };
  /// In order, at most `count_max`.
  Result<std::vector<OutboxRow>> outbox_after(int64_t id, int count_max);
  Result<std::vector<OutboxRow>> outbox_of(const Uuid& request_id);

  // What retention looks for.
  /// Requests that have ended and were submitted before `time`, the oldest first, without those whose audit is still to
  /// be copied.
  Result<std::vector<int64_t>> ended_before(WallTime time, int count_max);
  using Kept = std::pair<int64_t, uint64_t>;  // a row whose answer is kept, and its size
  /// In the order in which they came, as far as their stamps tell. Those that are stamped later than `now` were made
  /// before the clock was set back, and are all there is if there are any: what comes now is not to go before them.
  Result<std::vector<Kept>> kept_longest(WallTime now, int count_max);
  struct Doomed {
    int64_t id = 0;
    Uuid request_id;
    ContentId answer_id = 0;
    bool with_audit = false;  // its audit, otherwise its answer
  };
  Result<std::vector<Doomed>> doomed(int count_max);

  struct Unfinished {
    Fence fence;
    schema::State state = schema::State::kQueued;
    int gpu_count = 1;
  };
  /// All requests that are not terminal.
  Result<std::vector<Unfinished>> unfinished();

 private:
  Reader() = default;
  Result<std::vector<OutboxRow>> outbox_rows(Cursor cursor);

  std::unique_ptr<Database> database_;  // declared first: outlives the statements
  Statement status_;
  Statement state_;
  Statement output_;
  Statement standing_;
  Statement program_;
  Statement program_of_;
  Statement blobs_;
  Statement outbox_after_;
  Statement outbox_of_;
  Statement ended_before_;
  Statement kept_longest_;
  Statement kept_ahead_;
  Statement doomed_;
  Statement unfinished_;
};

class Readers {
 public:
  explicit Readers(std::string path) : path_(std::move(path)) {}

  /// A reader on loan, as long as the lease lives.
  class Lease {
   public:
    Lease(Readers& readers, std::unique_ptr<Reader> reader) : readers_(&readers), reader_(std::move(reader)) {}
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (reader_) readers_->put_back(std::move(reader_));
    }
    Reader* operator->() const { return reader_.get(); }
    Reader& operator*() const { return *reader_; }

   private:
    Readers* readers_;
    std::unique_ptr<Reader> reader_;
  };

  Result<Lease> lease();

 private:
  void put_back(std::unique_ptr<Reader> reader);

  const std::string path_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Reader>> idle_ KCORAL_GUARDED_BY(mutex_);
};

}  // namespace kcoral::store
