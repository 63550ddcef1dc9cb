// Where audit records wait, in the transaction of the change that they tell of, until they are copied to the audit.
//
// It promises: the records of a request are numbered from 0 without gaps and their times never run backwards, whatever
// the clock did. Belongs to the writer's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/uuid.h"
#include "store/content.h"
#include "store/sqlite.h"
#include "store/store.h"

namespace kcoral::store {

/// Where the audit of a request stands; its row keeps it.
struct AuditPosition {
  uint64_t next_seq = 0;
  int64_t last_us = 0;
};

class Outbox {
 public:
  static Result<std::unique_ptr<Outbox>> create(Database& database);

  /// Numbers `records` from `position` and moves it on. The caller writes it back to the request's row.
  Status append(const Uuid& request_id, AuditPosition& position, std::span<const AuditRecord> records);

  Status remove_through(int64_t id);

  /// Whether something was appended since the last call.
  bool take_appended() { return std::exchange(appended_, false); }

 private:
  Outbox() = default;

  Statement insert_;
  Statement remove_;
  // Ids never repeat while the process lives, so that whoever copies can go on after the last one that it saw.
  int64_t next_id_ = 1;
  bool appended_ = false;
};

/// The records of one row, as `append` wrote them.
std::vector<StoredRecord> split_records(const Uuid& request_id, uint64_t first_seq, std::string_view records);

}  // namespace kcoral::store
