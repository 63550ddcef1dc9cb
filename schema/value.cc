#include "schema/value.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "schema/dtype.h"
#include "schema/fields.h"
#include "schema/json_reader.h"
#include "schema/limits.h"
#include "schema/path.h"

namespace kcoral::schema {
namespace {

/// A level of nested values is two of JSON (`{"type":"array","value":[`); the deepest leaf is a file in a folder.
constexpr int kRuntimeJsonDepthMax = 2 * limits::kValueDepthMax + 3;

tl::unexpected<Error> malformed(std::string_view why) { return fail(ErrorKind::kEngine, "{}", why); }

std::string_view parent_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

bool contains_sorted(const std::vector<std::string>& sorted, std::string_view path) {
  return std::binary_search(sorted.begin(), sorted.end(), path);
}

/// A path as a folder lists it: in normal form, and after the one before it.
Status check_folder_path(std::string_view path, const std::vector<std::string>& before) {
  const auto normalised = normalise_path(path);
  if (!normalised) return malformed(normalised.error().message);
  if (*normalised != path) return malformed(fmt::format("the path {} is not in normal form", quote_short(path)));
  if (!before.empty() && before.back() >= path) {
    return malformed(fmt::format("the path {} is not in order", quote_short(path)));
  }
  return {};
}

/// Pieces lie inside their memories, and no more of a memory is named than it has: what is digested stays bounded by
/// what was sent.
Status check_extents(const std::vector<Extent>& extents) {
  std::map<const SealedMemory*, uint64_t> named_bytes;
  for (size_t i = 0; i < extents.size(); ++i) {
    const auto& [memory, offset, length] = extents[i];
    if (memory == nullptr) return malformed(fmt::format("part {} has no memory", i));
    const uint64_t size_bytes = memory->size_bytes();
    if (offset > size_bytes || length > size_bytes - offset) {
      return malformed(fmt::format("part {} (offset {}, length {}) is not inside its memory of {} bytes", i, offset,
                                   length, size_bytes));
    }
    uint64_t& named = named_bytes[memory.get()];
    if (length > size_bytes - named) return malformed(fmt::format("the parts up to {} overlap", i));
    named += length;
  }
  return {};
}

/// Rewrites one value document. Reading and writing go hand in hand: nothing is held but the names in a folder.
class ValueWriter {
 public:
  ValueWriter(std::string_view text, const std::vector<Extent>& extents, size_t first_part)
      : reader_(text, kRuntimeJsonDepthMax), extents_(extents), first_part_(first_part) {}

  Status write();
  std::string take_text() { return std::move(out_); }
  std::vector<Part> take_parts() { return std::move(parts_); }

 private:
  /// One kind of value: what follows its "type", in that order, and who rewrites each.
  struct Member {
    std::string_view name;
    Status (ValueWriter::*write)();
  };
  struct Kind {
    std::string_view name;
    std::array<Member, 3> members;
    size_t member_count;
  };
  static const std::array<Kind, 11> kKinds;

  void append(std::initializer_list<std::string_view> pieces) {
    for (const std::string_view piece : pieces) out_ += piece;
  }
  Status write_value();
  Result<const Kind*> read_kind();
  Status write_verbatim(JsonType wanted);

  Status write_boolean() { return write_verbatim(JsonType::kBoolean); }
  Status write_integer() { return write_verbatim(JsonType::kInteger); }
  Status write_string() { return write_verbatim(JsonType::kString); }
  Status write_number();
  Status write_array();
  Status write_object();
  Status write_dtype();
  Status write_shape();
  Status write_size();
  Status write_files();
  Status write_directories();
  Status write_part();

  JsonReader reader_;
  const std::vector<Extent>& extents_;
  const size_t first_part_;
  int depth_ = 0;  // of arrays and objects
  std::string out_;
  std::vector<Part> parts_;

  // What the members of the value at hand demand of those after them. No such value holds another of its kind.
  const Dtype* dtype_ = nullptr;
  std::optional<uint64_t> part_bytes_;
  std::vector<std::string> files_;
};

const std::array<ValueWriter::Kind, 11> ValueWriter::kKinds{{
    {"null", {}, 0},
    {"boolean", {{{"value", &ValueWriter::write_boolean}}}, 1},
    {"integer", {{{"value", &ValueWriter::write_integer}}}, 1},
    {"number", {{{"value", &ValueWriter::write_number}}}, 1},
    {"string", {{{"value", &ValueWriter::write_string}}}, 1},
    {"array", {{{"value", &ValueWriter::write_array}}}, 1},
    {"object", {{{"value", &ValueWriter::write_object}}}, 1},
    {"bytes", {{{"part", &ValueWriter::write_part}}}, 1},
    {"file", {{{"size", &ValueWriter::write_size}, {"part", &ValueWriter::write_part}}}, 2},
    {"folder", {{{"files", &ValueWriter::write_files}, {"directories", &ValueWriter::write_directories}}}, 2},
    {"tensor",
     {{{"dtype", &ValueWriter::write_dtype}, {"shape", &ValueWriter::write_shape}, {"part", &ValueWriter::write_part}}},
     3},
}};

Status ValueWriter::write() {
  if (auto checked = check_extents(extents_); !checked) return checked;
  if (auto written = write_value(); !written) return written;
  if (auto ended = reader_.expect_end(); !ended) return ended;
  if (parts_.size() != extents_.size()) {
    return malformed(fmt::format("it has {} parts but uses {}", extents_.size(), parts_.size()));
  }
  return {};
}

Status ValueWriter::write_value() {
  const Kind* kind = nullptr;
  size_t count = 0;
  auto read = reader_.read_object([&](const std::string& key) -> Status {
    if (kind == nullptr) {
      if (key != "type") return malformed(fmt::format("a value begins with {} instead of \"type\"", quote_short(key)));
      const auto found = read_kind();
      if (!found) return fail(found.error());
      kind = *found;
      append({"{\"type\":\"", kind->name, "\""});
      return {};
    }
    if (count == kind->member_count || kind->members[count].name != key) {
      return malformed(fmt::format("unexpected field {} in a value of type {}", quote_short(key), kind->name));
    }
    const Member& member = kind->members[count++];
    append({",\"", member.name, "\":"});
    return (this->*member.write)();
  });
  if (!read) return read;
  if (kind == nullptr) return malformed("a value without \"type\"");
  if (count != kind->member_count) {
    return malformed(fmt::format("no field \"{}\" in a value of type {}", kind->members[count].name, kind->name));
  }
  out_ += '}';
  return {};
}

Result<const ValueWriter::Kind*> ValueWriter::read_kind() {
  const auto name = reader_.read_string();
  if (!name) return fail(name.error());
  const auto* const kind = std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& k) { return k.name == *name; });
  if (kind == kKinds.end()) return malformed(fmt::format("unknown type {}", quote_short(*name)));
  return kind;
}

Status ValueWriter::write_verbatim(JsonType wanted) {
  const auto type = reader_.peek();
  if (!type) return fail(type.error());
  if (*type != wanted) return malformed(fmt::format("expected {}, found {}", describe(wanted), describe(*type)));
  const auto text = reader_.read_verbatim();
  if (!text) return fail(text.error());
  out_ += *text;
  return {};
}

Status ValueWriter::write_number() {
  const auto text = reader_.read_number_text();
  if (!text) return fail(text.error());
  if (!number_from(*text)) return malformed("a number that is not finite as a double");
  out_ += *text;
  return {};
}

Status ValueWriter::write_array() {
  if (depth_ == limits::kValueDepthMax) return malformed(fmt::format("nested more than {} deep", depth_));
  ++depth_;
  out_ += '[';
  auto read = reader_.read_array([&](size_t index) {
    if (index > 0) out_ += ',';
    return write_value();
  });
  out_ += ']';
  --depth_;
  return read;
}

Status ValueWriter::write_object() {
  if (depth_ == limits::kValueDepthMax) return malformed(fmt::format("nested more than {} deep", depth_));
  ++depth_;
  out_ += '{';
  bool is_first = true;
  auto read = reader_.read_object([&](const std::string& key) {
    if (!std::exchange(is_first, false)) out_ += ',';
    out_ += json_quote(key);
    out_ += ':';
    return write_value();
  });
  out_ += '}';
  --depth_;
  return read;
}

Status ValueWriter::write_dtype() {
  const auto name = reader_.read_string();
  if (!name) return fail(name.error());
  dtype_ = find_dtype(*name);
  if (dtype_ == nullptr) return malformed(fmt::format("unknown dtype {}", quote_short(*name)));
  out_ += fmt::format("\"{}\"", dtype_->name);
  return {};
}

Status ValueWriter::write_shape() {
  std::vector<uint64_t> shape;
  out_ += '[';
  auto read = reader_.read_array([&](size_t index) -> Status {
    if (index == limits::kTensorDimensionsMax) return malformed("a tensor with too many dimensions");
    const auto text = reader_.read_number_text();
    if (!text) return fail(text.error());
    const auto dimension = integer_from(*text);
    if (!dimension || *dimension < 0) return malformed(fmt::format("{} is no dimension", quote_short(*text)));
    shape.push_back(static_cast<uint64_t>(*dimension));
    out_ += fmt::format("{}{}", index > 0 ? "," : "", *dimension);
    return {};
  });
  if (!read) return read;
  out_ += ']';
  part_bytes_ = tensor_bytes(*dtype_, shape);
  if (!part_bytes_) return malformed("a tensor whose size overflows 63 bits");
  return {};
}

Status ValueWriter::write_size() {
  const auto text = reader_.read_number_text();
  if (!text) return fail(text.error());
  const auto size = integer_from(*text);
  if (!size || *size < 0) return malformed(fmt::format("{} is no size", quote_short(*text)));
  part_bytes_ = static_cast<uint64_t>(*size);
  out_ += fmt::format("{}", *size);
  return {};
}

Status ValueWriter::write_part() {
  const auto text = reader_.read_number_text();
  if (!text) return fail(text.error());
  const size_t index = parts_.size();
  if (integer_from(*text) != static_cast<int64_t>(index)) {
    return malformed(fmt::format("part {} where {} comes next", quote_short(*text), index));
  }
  if (index == extents_.size()) return malformed(fmt::format("it has {} parts but uses more", extents_.size()));
  const Extent& extent = extents_[index];
  const auto expected_bytes = std::exchange(part_bytes_, std::nullopt);
  if (expected_bytes && *expected_bytes != extent.length) {
    return malformed(fmt::format("part {} has {} bytes; its value takes {}", index, extent.length, *expected_bytes));
  }
  const auto content = extent.memory->view();
  if (!content) return fail(content.error());
  const Digest sha256 = Sha256::of(content->substr(extent.offset, extent.length));
  out_ += fmt::format("\"return:{}\",\"sha256\":\"{}\"", first_part_ + index, sha256.hex());
  parts_.push_back({.extent = extent, .sha256 = sha256});
  return {};
}

Status ValueWriter::write_files() {
  files_.clear();
  out_ += '{';
  auto read = reader_.read_object([&](const std::string& path) -> Status {
    if (auto checked = check_folder_path(path, files_); !checked) return checked;
    if (!files_.empty()) out_ += ',';
    files_.push_back(path);
    out_ += json_quote(path);
    out_ += ':';
    const size_t start = out_.size();
    if (auto written = write_value(); !written) return written;
    if (!std::string_view(out_).substr(start).starts_with(R"({"type":"file",)")) {
      return malformed(fmt::format("{} in a folder is no file", quote_short(path)));
    }
    return {};
  });
  out_ += '}';
  return read;
}

Status ValueWriter::write_directories() {
  const std::vector<std::string> files = std::move(files_);
  std::vector<std::string> directories;
  out_ += '[';
  auto read = reader_.read_array([&](size_t index) -> Status {
    auto path = reader_.read_string();
    if (!path) return fail(path.error());
    if (auto checked = check_folder_path(*path, directories); !checked) return checked;
    if (contains_sorted(files, *path))
      return malformed(fmt::format("{} is a file and a directory", quote_short(*path)));
    if (index > 0) out_ += ',';
    out_ += json_quote(*path);
    directories.push_back(*std::move(path));
    return {};
  });
  if (!read) return read;
  out_ += ']';
  // With every parent listed every ancestor is.
  for (const auto* const paths : {&files, &std::as_const(directories)}) {
    for (const std::string& path : *paths) {
      const std::string_view parent = parent_of(path);
      if (parent.empty() || contains_sorted(directories, parent)) continue;
      return malformed(fmt::format("the directory of {} is not listed", quote_short(path)));
    }
  }
  return {};
}

}  // namespace

Result<std::string> wire_value(std::string_view runtime_text, const std::vector<Extent>& extents,
                               std::vector<Part>& parts) {
  if (extents.size() > limits::kPartsMax || parts.size() > limits::kPartsMax - extents.size()) {
    return fail(ErrorKind::kEngine, "the program returns more than {} parts", limits::kPartsMax);
  }
  ValueWriter writer(runtime_text, extents, parts.size());
  if (auto written = writer.write(); !written) {
    return fail(ErrorKind::kEngine, "the runtime sent a malformed value: {}", written.error().message);
  }
  for (Part& part : writer.take_parts()) parts.push_back(std::move(part));
  return writer.take_text();
}

}  // namespace kcoral::schema
