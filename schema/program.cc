#include "schema/program.h"

#include <algorithm>

#include "schema/fields.h"
#include "schema/instructions.h"
#include "schema/json_reader.h"

namespace kcoral::schema {
namespace {

Result<double> timeout_of(const Field& field, double max) {
  const bool is_number = field.type == JsonType::kInteger || field.type == JsonType::kNumber;
  const auto seconds = is_number ? number_from(field.text) : std::nullopt;
  if (!seconds || *seconds <= 0) return refuse(field, "must be a finite number above 0");
  return std::min(*seconds, max);
}

Result<uint64_t> output_limit_of(const Field& field, uint64_t max) {
  constexpr std::string_view kRule = "must be an integer of at least 0";
  if (field.type != JsonType::kInteger) return refuse(field, kRule);
  const auto bytes = integer_from(field.text);
  if (!bytes) {  // beyond 64 bits either way
    if (field.text.starts_with('-')) return refuse(field, kRule);
    return max;
  }
  if (*bytes < 0) return refuse(field, kRule);
  return std::min(static_cast<uint64_t>(*bytes), max);
}

Result<int> gpu_count_of(const Field& field, int max) {
  const auto count = integer_of(field, 1, limits::kGpuCountMax);
  if (!count) return fail(count.error());
  if (*count > max) return refuse(field, fmt::format("asks for {} GPUs; this server grants at most {}", *count, max));
  return static_cast<int>(*count);
}

Result<int> small_integer_of(const Field& field, int min, int max) {
  const auto value = integer_of(field, min, max);
  if (!value) return fail(value.error());
  return static_cast<int>(*value);
}

Result<std::map<std::string, std::string>> labels_of(const Field& field) {
  if (field.type != JsonType::kObject)
    return refuse(field, fmt::format("must be an object, not {}", describe(field.type)));
  std::map<std::string, std::string> labels;
  JsonReader reader(field.text, limits::kJsonDepthMax);
  const auto read = reader.read_object([&](const std::string& name) -> Status {
    if (labels.size() == limits::kLabelsMax)
      return refuse(field, fmt::format("more than {} labels", limits::kLabelsMax));
    if (reader.peek() != JsonType::kString) return refuse(field, fmt::format("{} must be a string", quote_short(name)));
    auto value = reader.read_string();
    if (!value) return fail(value.error());
    if (name.size() > limits::kLabelBytesMax || value->size() > limits::kLabelBytesMax) {
      return refuse(
          field, fmt::format("{}: names and values have at most {} bytes", quote_short(name), limits::kLabelBytesMax));
    }
    labels.emplace(name, *std::move(value));
    return {};
  });
  if (!read) return fail(read.error());
  return labels;
}

/// Stores what was read, or hands the error on.
template <typename Value, typename Target>
Status set(Target& target, Result<Value> value) {
  if (!value) return fail(value.error());
  target = *std::move(value);
  return {};
}

Status set_option(Options& options, const Field& field, const ProgramBounds& bounds) {
  if (field.name == "timeout_seconds") {
    return set(options.timeout_seconds, timeout_of(field, bounds.timeout_seconds_max));
  }
  if (field.name == "output_limit_bytes") {
    return set(options.output_limit_bytes, output_limit_of(field, bounds.output_limit_bytes_max));
  }
  if (field.name == "gpu_count") return set(options.gpu_count, gpu_count_of(field, bounds.gpu_count_max));
  if (field.name == "priority") {
    return set(options.priority, small_integer_of(field, -limits::kPriorityMax, limits::kPriorityMax));
  }
  if (field.name == "labels") return set(options.labels, labels_of(field));
  if (field.name == "max_attempts") return set(options.max_attempts, small_integer_of(field, 1, limits::kAttemptsMax));
  return fail(
      ErrorKind::kParse,
      "unknown field {}; accepted: timeout_seconds, output_limit_bytes, gpu_count, priority, labels, max_attempts",
      quote_short(field.name));
}

Status parse_options(JsonReader& reader, const ProgramBounds& bounds, Options& options) {
  auto read = reader.read_object([&](const std::string& name) -> Status {
    const auto field = take_field(reader, name);
    if (!field) return fail(field.error());
    return set_option(options, *field, bounds);
  });
  if (!read) return fail(ErrorKind::kParse, "options: {}", read.error().message);
  return {};
}

Status parse_instructions(JsonReader& reader, Program& program) {
  const auto type = reader.peek();
  if (!type) return fail(ErrorKind::kParse, "instructions: {}", type.error().message);
  if (*type != JsonType::kArray) {
    return fail(ErrorKind::kParse, "instructions: must be a non-empty array, not {}", describe(*type));
  }
  InstructionParser parser(program);
  bool is_named = false;  // the error says already which instruction it is about
  const auto read = reader.read_array([&](size_t) {
    auto parsed = parser.parse_next(reader);
    is_named = !parsed;
    return parsed;
  });
  if (!read) {
    if (is_named) return read;
    return fail(ErrorKind::kParse, "instructions: {}", read.error().message);
  }
  if (program.instructions.empty()) return fail(ErrorKind::kParse, "instructions: must not be empty");
  return parser.finish();
}

}  // namespace

std::string_view Instruction::op() const {
  struct Name {
    std::string_view operator()(const GetFunction&) const { return "get_function"; }
    std::string_view operator()(const Run&) const { return "run"; }
    std::string_view operator()(const ReturnValue&) const { return "return"; }
    std::string_view operator()(const ReturnPath&) const { return "return"; }
    std::string_view operator()(const UploadModule&) const { return "upload"; }
    std::string_view operator()(const UploadTensor&) const { return "upload"; }
    std::string_view operator()(const UploadBytes&) const { return "upload"; }
    std::string_view operator()(const UploadFile&) const { return "upload"; }
    std::string_view operator()(const UploadLibrary&) const { return "upload"; }
  };
  return std::visit(Name{}, operation);
}

Result<Program> parse_program(std::string_view text, const ProgramBounds& bounds) {
  Program program;
  // The defaults are clamped as what a client asks for is.
  program.options.timeout_seconds = std::min(program.options.timeout_seconds, bounds.timeout_seconds_max);
  program.options.output_limit_bytes = std::min(program.options.output_limit_bytes, bounds.output_limit_bytes_max);

  bool has_instructions = false;
  bool is_named = false;
  JsonReader reader(text, limits::kJsonDepthMax);
  const auto parse_member = [&](const std::string& name) -> Status {
    if (name == "options") return parse_options(reader, bounds, program.options);
    if (name != "instructions") {
      return fail(ErrorKind::kParse, "program: unknown field {}; accepted: instructions, options (optional)",
                  quote_short(name));
    }
    has_instructions = true;
    return parse_instructions(reader, program);
  };
  const auto read = reader.read_object([&](const std::string& name) {
    auto parsed = parse_member(name);
    is_named = !parsed;
    return parsed;
  });
  if (!read && is_named) return fail(read.error());
  if (!read) return fail(ErrorKind::kParse, "program: {}", read.error().message);
  if (auto ended = reader.expect_end(); !ended) return fail(ErrorKind::kParse, "program: {}", ended.error().message);
  if (!has_instructions) return fail(ErrorKind::kParse, "program: field \"instructions\" is missing");
  return program;
}

Status check_blob_length(const Program& program, const Digest& blob, uint64_t bytes) {
  for (const Program::BlobLength& demanded : program.tensor_lengths) {
    if (demanded.blob != blob || demanded.bytes == bytes) continue;
    return fail(ErrorKind::kParse,
                "instructions[{}] (upload {}): field \"blob\": its content has {} bytes; dtype and shape take {}",
                demanded.instruction, quote_short(program.instructions[demanded.instruction].id), bytes,
                demanded.bytes);
  }
  return {};
}

}  // namespace kcoral::schema
