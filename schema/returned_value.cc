#include "schema/returned_value.h"

#include <charconv>
#include <optional>

#include "schema/fields.h"
#include "schema/json_reader.h"
#include "schema/limits.h"

namespace kcoral::schema {
namespace {

/// As deep as the values of a runtime (schema/value.cc), inside the document and its results.
constexpr int kAnswerJsonDepthMax = 2 * limits::kValueDepthMax + 5;

constexpr std::string_view kPartPrefix = "return:";

tl::unexpected<Error> damaged(std::string_view why) {
  return fail(ErrorKind::kEngine, "the answer is not as it was made: {}", why);
}

Status skip(JsonReader& reader) {
  const auto skipped = reader.read_verbatim();
  if (!skipped) return fail(skipped.error());
  return {};
}

/// Reads the string that comes next into `text`.
Status read_into(JsonReader& reader, std::string& text) {
  auto read = reader.read_string();
  if (!read) return fail(read.error());
  text = *std::move(read);
  return {};
}

/// The verbatim text of the value that was returned as `key`; nullopt if there is none.
Result<std::optional<std::string_view>> find_text(std::string_view document, std::string_view key) {
  std::optional<std::string_view> found;
  JsonReader reader(document, kAnswerJsonDepthMax);
  const auto take = [&](const std::string& member) -> Status {
    auto text = reader.read_verbatim();
    if (!text) return fail(text.error());
    if (member == key) found = *text;
    return {};
  };
  const auto read = reader.read_object(
      [&](const std::string& member) { return member == "results" ? reader.read_object(take) : skip(reader); });
  if (!read) return damaged(read.error().message);
  return found;
}

Result<Extent> extent_of(const Answer& answer, std::string_view part) {
  size_t index = answer.parts.size();
  if (part.starts_with(kPartPrefix)) {
    part.remove_prefix(kPartPrefix.size());
    std::from_chars(part.data(), part.data() + part.size(), index);
  }
  if (index >= answer.parts.size()) return damaged("a value names a part that is not there");
  return answer.parts[index].extent;
}

/// Reads a value of a folder's "files".
Result<Extent> read_file(JsonReader& reader, const Answer& answer) {
  std::string part;
  const auto read = reader.read_object(
      [&](const std::string& member) { return member == "part" ? read_into(reader, part) : skip(reader); });
  if (!read) return damaged(read.error().message);
  return extent_of(answer, part);
}

Result<ReturnedContent> read_folder(std::string_view text, const Answer& answer) {
  ReturnedFolder folder;
  JsonReader reader(text, kAnswerJsonDepthMax);
  const auto take_file = [&](const std::string& path) -> Status {
    auto extent = read_file(reader, answer);
    if (!extent) return fail(extent.error());
    folder.files.emplace_back(path, *std::move(extent));
    return {};
  };
  const auto take_directory = [&](size_t) { return read_into(reader, folder.directories.emplace_back()); };
  const auto read = reader.read_object([&](const std::string& member) {
    if (member == "files") return reader.read_object(take_file);
    if (member == "directories") return reader.read_array(take_directory);
    return skip(reader);
  });
  if (!read) return damaged(read.error().message);
  return folder;
}

Result<ReturnedContent> read_content(std::string_view text, const Answer& answer) {
  std::string type;
  std::string part;
  JsonReader reader(text, kAnswerJsonDepthMax);
  const auto read = reader.read_object([&](const std::string& member) {
    if (member == "type") return read_into(reader, type);
    return member == "part" ? read_into(reader, part) : skip(reader);
  });
  if (!read) return damaged(read.error().message);
  if (type == "folder") return read_folder(text, answer);
  if (part.empty()) return text;
  auto extent = extent_of(answer, part);
  if (!extent) return fail(extent.error());
  return *std::move(extent);
}

}  // namespace

Result<ReturnedContent> find_returned(const Answer& answer, std::string_view key) {
  const auto text = find_text(answer.document, key);
  if (!text) return fail(text.error());
  if (!*text) return fail(ErrorKind::kNotFound, "nothing was returned as {}", quote_short(key));
  return read_content(**text, answer);
}

}  // namespace kcoral::schema
