#include "store/outbox.h"

#include <algorithm>
#include <string>

namespace kcoral::store {
namespace {

constexpr char kSeparator = '\x1e';  // in no JSON text, not even as white space

}  // namespace

Result<std::unique_ptr<Outbox>> Outbox::create(Database& database) {
  std::unique_ptr<Outbox> outbox(new Outbox());
  auto insert = database.prepare("INSERT INTO outbox (id, request_id, first_seq, records) VALUES (?, ?, ?, ?)");
  if (!insert) return fail(insert.error());
  auto remove = database.prepare("DELETE FROM outbox WHERE id <= ?");
  if (!remove) return fail(remove.error());
  auto last = database.query_text("SELECT coalesce(max(id), 0) FROM outbox");
  if (!last) return fail(last.error());
  outbox->insert_ = std::move(*insert);
  outbox->remove_ = std::move(*remove);
  outbox->next_id_ = std::stoll(*last) + 1;
  return outbox;
}

Status Outbox::append(const Uuid& request_id, AuditPosition& position, std::span<const AuditRecord> records) {
  if (records.empty()) return {};
  const uint64_t first_seq = position.next_seq;
  std::string text;
  for (const AuditRecord& record : records) {
    position.last_us = std::max<int64_t>(position.last_us, record.at.time_since_epoch().count());
    if (!text.empty()) text += kSeparator;
    fmt::format_to(std::back_inserter(text), R"({{"seq":{},"at":"{}",{}}})", position.next_seq,
                   rfc3339(WallTime(std::chrono::microseconds(position.last_us))), record.members);
    ++position.next_seq;
  }
  appended_ = true;
  return insert_.execute(next_id_++, request_id, first_seq, text);
}

Status Outbox::remove_through(int64_t id) { return remove_.execute(id); }

std::vector<StoredRecord> split_records(const Uuid& request_id, uint64_t first_seq, std::string_view records) {
  std::vector<StoredRecord> split;
  for (;;) {
    const size_t end = std::min(records.find(kSeparator), records.size());
    split.push_back({request_id, first_seq++, std::string(records.substr(0, end))});
    if (end == records.size()) return split;
    records.remove_prefix(end + 1);
  }
}

}  // namespace kcoral::store
