#include "schema/instructions.h"

#include <algorithm>
#include <array>
#include <span>

#include "schema/limits.h"
#include "schema/path.h"

namespace kcoral::schema {

/// The fields of one kind of instruction, the required ones first.
struct InstructionParser::Form {
  std::string_view title;
  std::span<const std::string_view> required;
  std::span<const std::string_view> optional;

  bool has(std::string_view name) const { return contains(required, name) || contains(optional, name); }
  std::string accepted() const;
  Status check(const Fields& fields) const;

 private:
  static bool contains(std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
};

namespace {

constexpr std::string_view kOps = "upload get_function run return";
constexpr std::string_view kUploadKinds = "module tensor bytes file library";
constexpr size_t kFieldNameCount = 16;  // of all forms together

constexpr std::string_view kModuleFields[] = {"op", "id", "kind", "source"};
constexpr std::string_view kModuleOptional[] = {"language"};
constexpr std::string_view kTensorFields[] = {"op", "id", "kind", "blob", "dtype", "shape"};
constexpr std::string_view kBlobFields[] = {"op", "id", "kind", "blob"};
constexpr std::string_view kFileFields[] = {"op", "id", "kind", "blob", "path"};
constexpr std::string_view kGetFunctionFields[] = {"op", "id", "module", "name"};
constexpr std::string_view kGetFunctionOptional[] = {"cpu_only"};
constexpr std::string_view kRunFields[] = {"op", "id", "fn"};
constexpr std::string_view kRunOptional[] = {"args"};
constexpr std::string_view kReturnValueFields[] = {"op", "key", "value"};
constexpr std::string_view kReturnPathFields[] = {"op", "key", "kind", "path"};

const Field* find(const std::vector<Field>& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

/// Requires: the fields passed Form::check of a form that requires `name`.
const Field& get(const std::vector<Field>& fields, std::string_view name) {
  const Field* const field = find(fields, name);
  KCORAL_CHECK(field != nullptr);
  return *field;
}

template <typename T>
bool is(const Instruction& instruction) {
  return std::holds_alternative<T>(instruction.operation);
}

bool is_cuda(const Instruction& instruction) {
  const auto* const module = std::get_if<UploadModule>(&instruction.operation);
  return module != nullptr && module->language == UploadModule::Language::kCuda;
}

bool is_module_or_library(const Instruction& instruction) {
  return is<UploadModule>(instruction) || is<UploadLibrary>(instruction);
}

bool is_identifier(std::string_view name) {
  const auto is_letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_'; };
  const auto is_letter_or_digit = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && is_letter(name.front()) && std::all_of(name.begin(), name.end(), is_letter_or_digit);
}

/// What a message calls the handle of an instruction.
std::string_view handle_title(const Instruction& instruction) {
  struct Title {
    std::string_view operator()(const UploadModule&) const { return "a module"; }
    std::string_view operator()(const UploadTensor&) const { return "a tensor"; }
    std::string_view operator()(const UploadBytes&) const { return "bytes"; }
    std::string_view operator()(const UploadFile&) const { return "a file"; }
    std::string_view operator()(const UploadLibrary&) const { return "a library"; }
    std::string_view operator()(const GetFunction&) const { return "a function"; }
    std::string_view operator()(const Run&) const { return "a result"; }
    std::string_view operator()(const ReturnValue&) const { return "a return"; }
    std::string_view operator()(const ReturnPath&) const { return "a return"; }
  };
  return std::visit(Title{}, instruction.operation);
}

tl::unexpected<Error> refuse_handle(const Field& field, const Instruction& handle, std::string_view wanted) {
  return refuse(field, fmt::format("{} is {}; {}", quote_short(handle.id), handle_title(handle), wanted));
}

Result<std::string> choice_of(const Field& field, std::string_view choices) {
  auto chosen = string_of(field);
  if (!chosen) return chosen;
  for (std::string_view rest = choices; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == *chosen) return chosen;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return refuse(field, fmt::format("{} is none of {}", quote_short(*chosen), choices));
}

Result<std::vector<uint64_t>> shape_of(const Field& field) {
  if (field.type != JsonType::kArray)
    return refuse(field, fmt::format("must be an array, not {}", describe(field.type)));
  std::vector<uint64_t> shape;
  JsonReader reader(field.text, limits::kJsonDepthMax);
  const auto read = reader.read_array([&](size_t index) -> Status {
    if (index == limits::kTensorDimensionsMax) {
      return refuse(field, fmt::format("has more than {} dimensions", limits::kTensorDimensionsMax));
    }
    const auto type = reader.peek();
    const auto text = reader.read_verbatim();
    const auto dimension = type == JsonType::kInteger ? integer_from(*text) : std::nullopt;
    if (!dimension || *dimension < 0) {
      return refuse(field, fmt::format("element {} must be an integer from 0 to {}", index, INT64_MAX));
    }
    shape.push_back(static_cast<uint64_t>(*dimension));
    return {};
  });
  if (!read) return fail(read.error());
  return shape;
}

/// `instructions[3] (upload "x")`, with what is known of the instruction so far.
std::string describe_instruction(size_t index, const std::vector<Field>& fields) {
  const auto text_of = [&](std::string_view name) -> std::string {
    const Field* const field = find(fields, name);
    if (field == nullptr || field->type != JsonType::kString) return {};
    return quote_short(string_of(*field).value_or(std::string()));
  };
  std::string op = text_of("op");
  std::string name = text_of("id");
  if (name.empty()) name = text_of("key");
  if (op.empty()) return fmt::format("instructions[{}]", index);
  op = op.substr(1, op.size() - 2);
  return fmt::format("instructions[{}] ({}{}{})", index, op, name.empty() ? "" : " ", name);
}

}  // namespace

std::string InstructionParser::Form::accepted() const {
  std::string names;
  for (const std::string_view name : required) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  for (const std::string_view name : optional) names += fmt::format(", {} (optional)", name);
  return names;
}

Status InstructionParser::Form::check(const Fields& fields) const {
  for (const Field& field : fields) {
    if (has(field.name)) continue;
    return fail(ErrorKind::kParse, "unknown field {}; accepted in {}: {}", quote_short(field.name), title, accepted());
  }
  for (const std::string_view name : required) {
    if (find(fields, name) != nullptr) continue;
    return fail(ErrorKind::kParse, "field \"{}\" is missing; accepted in {}: {}", name, title, accepted());
  }
  return {};
}

Status InstructionParser::parse_next(JsonReader& reader) {
  const size_t index = program_.instructions.size();
  if (index == limits::kInstructionsMax) {
    return fail(ErrorKind::kParse, "instructions: more than {} of them", limits::kInstructionsMax);
  }
  Fields fields;
  const auto instruction = [&]() -> Result<Instruction> {
    if (auto collected = collect(reader, fields); !collected) return fail(collected.error());
    return interpret(fields);
  }();
  if (!instruction) {
    return fail(instruction.error().kind, "{}: {}", describe_instruction(index, fields), instruction.error().message);
  }
  if (!instruction->id.empty()) handles_.emplace(instruction->id, static_cast<InstructionIndex>(index));
  if (!instruction->key.empty()) return_keys_.insert(instruction->key);
  program_.instructions.push_back(*instruction);
  return {};
}

Status InstructionParser::collect(JsonReader& reader, Fields& fields) const {
  return reader.read_object([&](const std::string& name) -> Status {
    auto field = name == "args" ? take_arguments(reader, name) : take_field(reader, name);
    if (!field) return fail(field.error());
    // Among one more distinct names than there are, one is unknown: enough to refuse it, and a bound on what is kept.
    if (fields.size() <= kFieldNameCount) fields.push_back(*std::move(field));
    return {};
  });
}

/// Arguments may be most of a program, so their references are resolved on the only pass over them.
Result<Field> InstructionParser::take_arguments(JsonReader& reader, const std::string& name) const {
  if (auto type = reader.peek(); !type || *type != JsonType::kArray) return take_field(reader, name);
  const auto read = reader.check_array([&](size_t index, std::string_view text) -> Status {
    const auto id = reference_in(text);
    if (!id || handles_.contains(*id)) return {};
    return fail(ErrorKind::kParse, "element {} refers to {}, which no earlier instruction defines", index,
                quote_short(*id));
  });
  if (!read) return fail(ErrorKind::kParse, "field \"args\": {}", read.error().message);
  return Field{name, JsonType::kArray, {}};
}

Result<Instruction> InstructionParser::interpret(const Fields& fields) {
  const Field* const op_field = find(fields, "op");
  if (op_field == nullptr) return fail(ErrorKind::kParse, "field \"op\" is missing; it is one of {}", kOps);
  const auto op = choice_of(*op_field, kOps);
  if (!op) return fail(op.error());
  if (*op == "upload") return interpret_upload(fields);
  if (*op == "return") return interpret_return(fields);
  if (*op == "get_function") {
    constexpr Form kForm{"a get_function", kGetFunctionFields, kGetFunctionOptional};
    if (auto checked = kForm.check(fields); !checked) return fail(checked.error());
    return with_id(fields, get_function(fields));
  }
  constexpr Form kForm{"a run", kRunFields, kRunOptional};
  if (auto checked = kForm.check(fields); !checked) return fail(checked.error());
  return with_id(fields, run(fields));
}

Result<Instruction> InstructionParser::interpret_upload(const Fields& fields) {
  struct Kind {
    std::string_view name;
    Form form;
  };
  static constexpr std::array<Kind, 5> kKinds{{
      {"module", {"a module upload", kModuleFields, kModuleOptional}},
      {"tensor", {"a tensor upload", kTensorFields, {}}},
      {"bytes", {"a bytes upload", kBlobFields, {}}},
      {"file", {"a file upload", kFileFields, {}}},
      {"library", {"a library upload", kBlobFields, {}}},
  }};
  const Field* const kind_field = find(fields, "kind");
  if (kind_field == nullptr) {
    return fail(ErrorKind::kParse, "field \"kind\" is missing; an upload's is one of {}", kUploadKinds);
  }
  const auto kind = choice_of(*kind_field, kUploadKinds);
  if (!kind) return fail(kind.error());
  const auto* const form =
      std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& known) { return known.name == *kind; });
  KCORAL_CHECK(form != kKinds.end());
  if (auto checked = form->form.check(fields); !checked) return fail(checked.error());

  if (*kind == "module") return with_id(fields, module_upload(fields));
  if (*kind == "tensor") return with_id(fields, tensor_upload(fields));
  if (*kind == "file") return with_id(fields, file_upload(fields));
  const auto blob = take_blob(fields);
  if (!blob) return fail(blob.error());
  if (*kind == "bytes") return with_id(fields, Instruction::Operation(UploadBytes{*blob}));
  return with_id(fields, Instruction::Operation(UploadLibrary{*blob}));
}

Result<Instruction> InstructionParser::interpret_return(const Fields& fields) {
  constexpr Form kValueForm{"a return of a value", kReturnValueFields, {}};
  constexpr Form kPathForm{"a return of a file or folder", kReturnPathFields, {}};
  const bool has_value = find(fields, "value") != nullptr;
  const bool has_path = find(fields, "kind") != nullptr || find(fields, "path") != nullptr;
  if (has_value == has_path) {
    return fail(ErrorKind::kParse, "a return has either \"value\" or \"kind\" and \"path\"");
  }
  if (auto checked = (has_value ? kValueForm : kPathForm).check(fields); !checked) return fail(checked.error());
  auto key = name_of(get(fields, "key"));
  if (!key) return fail(key.error());
  if (return_keys_.contains(*key)) {
    return refuse(get(fields, "key"), fmt::format("{} is the key of an earlier return", quote_short(*key)));
  }
  auto operation = has_value ? return_value(fields) : return_path(fields);
  if (!operation) return fail(operation.error());
  return Instruction{.id = {}, .key = *std::move(key), .operation = *std::move(operation)};
}

Result<Instruction> InstructionParser::with_id(const Fields& fields, Result<Instruction::Operation> operation) const {
  auto id = name_of(get(fields, "id"));
  if (!id) return fail(id.error());
  if (handles_.contains(*id)) {
    return refuse(get(fields, "id"), fmt::format("{} is the id of an earlier instruction", quote_short(*id)));
  }
  if (!operation) return fail(operation.error());
  return Instruction{.id = *std::move(id), .key = {}, .operation = *std::move(operation)};
}

Result<Instruction::Operation> InstructionParser::module_upload(const Fields& fields) const {
  const Field& source = get(fields, "source");
  // Only its type: the text was checked, and may be long.
  if (source.type != JsonType::kString) {
    return refuse(source, fmt::format("must be a string, not {}", describe(source.type)));
  }
  UploadModule module;
  if (const Field* const field = find(fields, "language"); field != nullptr) {
    const auto language = choice_of(*field, "python cuda");
    if (!language) return fail(language.error());
    if (*language == "cuda") module.language = UploadModule::Language::kCuda;
  }
  return module;
}

Result<Instruction::Operation> InstructionParser::tensor_upload(const Fields& fields) {
  const Field& dtype_field = get(fields, "dtype");
  const auto dtype_name = choice_of(dtype_field, dtype_names());
  if (!dtype_name) return fail(dtype_name.error());
  const Dtype* const dtype = find_dtype(*dtype_name);
  KCORAL_CHECK(dtype != nullptr);
  const Field& shape_field = get(fields, "shape");
  auto shape = shape_of(shape_field);
  if (!shape) return fail(shape.error());
  const auto bytes = tensor_bytes(*dtype, *shape);
  if (!bytes) return refuse(shape_field, "its product times the item size overflows 63 bits");
  const auto blob = take_blob(fields);
  if (!blob) return fail(blob.error());
  if (auto demanded = demand_length(shape_field, *blob, *bytes); !demanded) return fail(demanded.error());
  return UploadTensor{.blob = *blob, .dtype = dtype, .shape = *std::move(shape)};
}

Result<Instruction::Operation> InstructionParser::file_upload(const Fields& fields) {
  const Field& path_field = get(fields, "path");
  const auto path = string_of(path_field);
  if (!path) return fail(path.error());
  auto normalised = normalise_path(*path);
  if (!normalised) return refuse(path_field, normalised.error().message);
  const auto blob = take_blob(fields);
  if (!blob) return fail(blob.error());
  return UploadFile{.blob = *blob, .path = *std::move(normalised)};
}

Result<Instruction::Operation> InstructionParser::get_function(const Fields& fields) const {
  const Field& module_field = get(fields, "module");
  const auto module = resolve(module_field);
  if (!module) return fail(module.error());
  if (!is_module_or_library(handle(*module))) {
    return refuse_handle(module_field, handle(*module), "it must be a module or a library upload");
  }
  const Field& name_field = get(fields, "name");
  const auto name = name_of(name_field);
  if (!name) return fail(name.error());
  if (is_cuda(handle(*module)) && (!is_identifier(*name) || *name == "main")) {
    return refuse(name_field,
                  fmt::format("{}: a CUDA function's name must be an identifier other than main", quote_short(*name)));
  }
  GetFunction function{.module = *module};
  if (const Field* const field = find(fields, "cpu_only"); field != nullptr) {
    const auto cpu_only = boolean_of(*field);
    if (!cpu_only) return fail(cpu_only.error());
    function.cpu_only = *cpu_only;
  }
  return function;
}

/// Any handle may stand as the function: whether it can be called shows when it is (contract section 6, "not
/// callable").
Result<Instruction::Operation> InstructionParser::run(const Fields& fields) const {
  const auto fn = resolve(get(fields, "fn"));
  if (!fn) return fail(fn.error());
  if (const Field* const args = find(fields, "args"); args != nullptr && args->type != JsonType::kArray) {
    return refuse(*args, fmt::format("must be an array, not {}", describe(args->type)));
  }
  return Run{.fn = *fn};
}

Result<Instruction::Operation> InstructionParser::return_value(const Fields& fields) const {
  const Field& field = get(fields, "value");
  const auto value = resolve(field);
  if (!value) return fail(value.error());
  const Instruction& returned = handle(*value);
  if (is_module_or_library(returned) || is<GetFunction>(returned)) {
    return refuse_handle(field, returned, "modules, libraries and functions cannot be returned");
  }
  return ReturnValue{.value = *value};
}

Result<Instruction::Operation> InstructionParser::return_path(const Fields& fields) const {
  const auto kind = choice_of(get(fields, "kind"), "file folder");
  if (!kind) return fail(kind.error());
  const ReturnPath operation{.kind = *kind == "file" ? ReturnPath::Kind::kFile : ReturnPath::Kind::kFolder};

  const Field& field = get(fields, "path");
  if (field.type == JsonType::kString) {
    const auto path = string_of(field);
    if (!path) return fail(path.error());
    if (auto normalised = normalise_path(*path); !normalised) return refuse(field, normalised.error().message);
    return operation;
  }
  if (field.type != JsonType::kObject) {
    return refuse(field,
                  fmt::format("must be a string or a reference {{\"$ref\": \"id\"}}, not {}", describe(field.type)));
  }
  const auto index = resolve(field);
  if (!index) return fail(index.error());
  const Instruction& path = handle(*index);
  // A name of a Python module may well be a string; what a CUDA module or a library exports is none.
  const auto* const function = std::get_if<GetFunction>(&path.operation);
  const bool may_be_string =
      is<UploadFile>(path) || is<Run>(path) ||
      (function != nullptr && is<UploadModule>(handle(function->module)) && !is_cuda(handle(function->module)));
  if (!may_be_string) return refuse_handle(field, path, "it cannot be a path string");
  return operation;
}

Result<Digest> InstructionParser::take_blob(const Fields& fields) {
  const auto blob = digest_of(get(fields, "blob"));
  if (!blob) return blob;
  if (!blobs_.insert(*blob).second) return blob;
  if (blobs_.size() > limits::kBlobsMax) {
    return refuse(get(fields, "blob"), fmt::format("the program has more than {} distinct blobs", limits::kBlobsMax));
  }
  program_.blobs.push_back(*blob);
  return blob;
}

/// One entry for each blob is enough: another upload of it demands the same length, or no content can serve both.
Status InstructionParser::demand_length(const Field& shape, const Digest& blob, uint64_t bytes) {
  const auto [entry, is_new] = lengths_.try_emplace(blob, program_.tensor_lengths.size());
  if (is_new) {
    const auto index = static_cast<InstructionIndex>(program_.instructions.size());
    program_.tensor_lengths.push_back({.instruction = index, .blob = blob, .bytes = bytes});
    return {};
  }
  const Program::BlobLength& first = program_.tensor_lengths[entry->second];
  if (first.bytes == bytes) return {};
  return refuse(shape, fmt::format("takes {} bytes, but instructions[{}] ({} {}) takes {} of the same blob", bytes,
                                   first.instruction, handle(first.instruction).op(),
                                   quote_short(handle(first.instruction).id), first.bytes));
}

Result<InstructionIndex> InstructionParser::resolve(const Field& field) const {
  const auto id = reference_of(field);
  if (!id) return fail(id.error());
  const auto found = handles_.find(*id);
  if (found == handles_.end()) {
    return refuse(field, fmt::format("refers to {}, which no earlier instruction defines", quote_short(*id)));
  }
  return found->second;
}

Status InstructionParser::finish() const {
  std::vector<std::string_view> paths;
  std::vector<size_t> indices;
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const auto* const file = std::get_if<UploadFile>(&program_.instructions[i].operation);
    if (file == nullptr) continue;
    paths.push_back(file->path);
    indices.push_back(i);
  }
  const auto overlap = find_overlap(paths);
  if (!overlap) return {};
  const size_t later = std::max(indices[overlap->outer], indices[overlap->inner]);
  const size_t earlier = std::min(indices[overlap->outer], indices[overlap->inner]);
  return fail(ErrorKind::kParse, "instructions[{}] (upload {}): field \"path\": with instructions[{}], {}", later,
              quote_short(program_.instructions[later].id), earlier,
              describe_overlap(paths[overlap->outer], paths[overlap->inner]));
}

}  // namespace kcoral::schema
