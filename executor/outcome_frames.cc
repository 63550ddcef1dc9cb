#include "executor/outcome_frames.h"

#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include "executor/frame_fields.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using nlohmann::json;
using schema::Outcome;

constexpr uint64_t kAnySize = std::numeric_limits<int64_t>::max();

using Memories = std::vector<std::shared_ptr<const SealedMemory>>;

constexpr std::pair<Outcome::Ending, const char*> kEndings[] = {
    {Outcome::Ending::kCompleted, "completed"},
    {Outcome::Ending::kFailed, "failed"},
    {Outcome::Ending::kTimedOut, "timed_out"},
    {Outcome::Ending::kCancelled, "cancelled"},
};

const char* wire_name(Outcome::Ending ending) {
  for (const auto& [known, name] : kEndings) {
    if (known == ending) return name;
  }
  return "";
}

std::optional<Outcome::Ending> ending_from(std::string_view text) {
  for (const auto& [ending, name] : kEndings) {
    if (text == name) return ending;
  }
  return std::nullopt;
}

bool has_members(Outcome::Ending ending) {
  return ending == Outcome::Ending::kCompleted || ending == Outcome::Ending::kFailed;
}

/// The distinct memories of the parts, in the order of first use.
class DataTable {
 public:
  size_t number_of(const std::shared_ptr<const SealedMemory>& memory) {
    const auto [entry, is_new] = numbers_.emplace(memory.get(), memories_.size());
    if (is_new) memories_.push_back(memory);
    return entry->second;
  }
  const std::vector<std::shared_ptr<const SealedMemory>>& memories() const { return memories_; }

 private:
  std::unordered_map<const SealedMemory*, size_t> numbers_;
  std::vector<std::shared_ptr<const SealedMemory>> memories_;
};

Result<std::string> read_text(UniqueFd fd) {
  auto memory = SealedMemory::adopt(std::move(fd), kAnySize);
  if (!memory) return fail(memory.error());
  auto text = (*memory)->view();
  if (!text) return fail(text.error());
  return std::string(*text);
}

Result<std::vector<schema::Part>> decode_parts(const SealedMemory& table, const Memories& data) {
  auto text = table.view();
  if (!text) return fail(text.error());
  const json rows = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!rows.is_array()) return fail(ErrorKind::kEngine, "an outcome's parts table is no array");
  std::vector<schema::Part> parts;
  for (const json& row : rows) {
    if (!row.is_array() || row.size() != 4 || !row[0].is_number_unsigned() || !row[1].is_number_unsigned() ||
        !row[2].is_number_unsigned() || !row[3].is_string()) {
      return fail(ErrorKind::kEngine, "a row of an outcome's parts table is malformed");
    }
    const auto number = row[0].get<uint64_t>(), offset = row[1].get<uint64_t>(), length = row[2].get<uint64_t>();
    const auto sha256 = Digest::parse(row[3].get<std::string>());
    if (number >= data.size() || !sha256 || offset > data[number]->size_bytes() ||
        length > data[number]->size_bytes() - offset) {
      return fail(ErrorKind::kEngine, "a part of an outcome lies outside of its data");
    }
    parts.push_back({{data[number], offset, length}, *sha256});
  }
  return parts;
}

}  // namespace

Result<RunReport> make_report(const Outcome& outcome, std::string results_summary) {
  RunReport report;
  report.ending = outcome.ending;
  report.error_message = outcome.message;
  if (outcome.error) {
    report.error_kind = schema::wire_name(outcome.error->kind);
    report.error_message = outcome.error->message;
  }
  report.results_summary = std::move(results_summary);
  report.parts = outcome.parts;
  report.elapsed_ms = outcome.elapsed_ms;
  report.lease_wait_ms = outcome.lease_wait_ms;
  report.lease_held_ms = outcome.lease_held_ms;
  if (has_members(outcome.ending)) {
    auto members = SealedMemory::copy_of(schema::render_outcome_members(outcome));
    if (!members) return fail(members.error());
    report.outcome_members = std::move(*members);
  }
  return report;
}

Result<std::vector<EncodedFrame>> encode_report(const RunId& run, const RunReport& report) {
  DataTable data;
  json table = json::array();
  for (const schema::Part& part : report.parts) {
    table.push_back({data.number_of(part.extent.memory), part.extent.offset, part.extent.length, part.sha256.hex()});
  }
  std::vector<EncodedFrame> frames;
  for (const auto& memory : data.memories()) {
    if (frames.empty() || frames.back().fds.size() == limits::kFrameFdsMax) {
      frames.push_back({frame_about(run, "outcome_data"), {}});
    }
    frames.back().fds.emplace_back(memory);
  }

  auto members = report.outcome_members ? Result<std::shared_ptr<const SealedMemory>>(report.outcome_members)
                                        : SealedMemory::copy_of("");
  auto summary = SealedMemory::copy_of(report.results_summary);
  auto parts = SealedMemory::copy_of(table.dump());
  for (const auto* memory : {&members, &summary, &parts}) {
    if (!*memory) return fail(memory->error());
  }
  json body = frame_about(run, "outcome");
  body["ending"] = wire_name(report.ending);
  body["error_kind"] = report.error_kind;
  // The whole message is in the members. A character that is cut in two is replaced when the frame is rendered.
  body["error_message"] = report.error_message.substr(0, limits::kFrameMessageBytesMax);
  body["elapsed_ms"] = report.elapsed_ms;
  body["lease_wait_ms"] = report.lease_wait_ms;
  body["lease_held_ms"] = report.lease_held_ms;
  frames.push_back({std::move(body), {*members, *summary, *parts}});
  return frames;
}

Status ReportDecoder::on_outcome_data(Frame frame) {
  for (UniqueFd& fd : frame.fds) {
    auto memory = SealedMemory::adopt(std::move(fd), kAnySize);
    if (!memory) return fail(memory.error());
    data_.push_back(std::move(*memory));
  }
  return {};
}

Result<RunReport> ReportDecoder::on_outcome(Frame frame) {
  const auto data = std::exchange(data_, {});
  if (frame.fds.size() != 3) return fail(ErrorKind::kEngine, "an outcome with {} descriptors", frame.fds.size());
  auto ending_name = string_field(frame.body, "ending");
  if (!ending_name) return fail(ending_name.error());
  const auto ending = ending_from(*ending_name);
  if (!ending) return fail(ErrorKind::kEngine, "an outcome with the ending \"{}\"", *ending_name);

  RunReport report;
  report.ending = *ending;
  for (const auto& [name, member] :
       {std::pair{"error_kind", &RunReport::error_kind}, std::pair{"error_message", &RunReport::error_message}}) {
    auto text = string_field(frame.body, name);
    if (!text) return fail(text.error());
    report.*member = std::move(*text);
  }
  for (const auto& [name, member] :
       {std::pair{"elapsed_ms", &RunReport::elapsed_ms}, std::pair{"lease_wait_ms", &RunReport::lease_wait_ms},
        std::pair{"lease_held_ms", &RunReport::lease_held_ms}}) {
    auto number = number_field(frame.body, name);
    if (!number) return fail(number.error());
    report.*member = *number;
  }
  auto members = SealedMemory::adopt(std::move(frame.fds[0]), kAnySize);
  if (!members) return fail(members.error());
  if (has_members(report.ending)) report.outcome_members = std::move(*members);
  auto summary = read_text(std::move(frame.fds[1]));
  if (!summary) return fail(summary.error());
  report.results_summary = std::move(*summary);
  auto table = SealedMemory::adopt(std::move(frame.fds[2]), kAnySize);
  if (!table) return fail(table.error());
  auto parts = decode_parts(**table, data);
  if (!parts) return fail(parts.error());
  report.parts = std::move(*parts);
  return report;
}

}  // namespace kcoral::executor
