#include "executor/supervisor/runtime_conversation.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <utility>

#include "executor/frame_fields.h"
#include "schema/fields.h"
#include "schema/json_reader.h"
#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using schema::InstructionErrorKind;
using schema::JsonReader;

// Around the value itself: "value", "parts" and the lists in it.
constexpr int kDocumentDepthMax = limits::kValueDepthMax * 2 + 8;

bool is_return(const schema::Instruction& instruction) {
  return std::holds_alternative<schema::ReturnValue>(instruction.operation) ||
         std::holds_alternative<schema::ReturnPath>(instruction.operation);
}

/// Bytes of all of `fds`; what is no file counts nothing.
uint64_t total_bytes(const std::vector<UniqueFd>& fds) {
  uint64_t total = 0;
  for (const UniqueFd& fd : fds) {
    struct stat status;
    if (::fstat(fd.get(), &status) == 0) total += static_cast<uint64_t>(status.st_size);
  }
  return total;
}

tl::unexpected<Error> too_many_parts() {
  return fail(ErrorKind::kResponseTooLarge, "a program can return at most {} parts (bytes, tensors and files) in all",
              limits::kPartsMax);
}

struct ValueDocument {
  std::string_view value;
  std::vector<std::pair<uint64_t, uint64_t>> pieces;  // offset, length
};

Result<uint64_t> read_offset(JsonReader& reader) {
  auto text = reader.read_number_text();
  if (!text) return fail(text.error());
  const auto number = schema::integer_from(*text);
  if (!number || *number < 0) return fail(ErrorKind::kEngine, "{} is no offset or length", schema::quote_short(*text));
  return static_cast<uint64_t>(*number);
}

Status read_pieces(JsonReader& reader, std::vector<std::pair<uint64_t, uint64_t>>& pieces) {
  return reader.read_array([&](size_t index) -> Status {
    if (index >= limits::kPartsMax) return too_many_parts();
    std::vector<uint64_t> numbers;
    auto read = reader.read_array([&](size_t position) -> Status {
      if (position >= 2) return fail(ErrorKind::kEngine, "a part is [offset, length]");
      auto number = read_offset(reader);
      if (!number) return fail(number.error());
      numbers.push_back(*number);
      return {};
    });
    if (!read) return read;
    if (numbers.size() != 2) return fail(ErrorKind::kEngine, "a part is [offset, length]");
    pieces.emplace_back(numbers[0], numbers[1]);
    return {};
  });
}

/// `{"value": V, "parts": [[offset, length], ...]}`; V stays in `text`.
Result<ValueDocument> parse_value_document(std::string_view text) {
  JsonReader reader(text, kDocumentDepthMax);
  ValueDocument document;
  auto read = reader.read_object([&](const std::string& key) -> Status {
    if (key == "parts") return read_pieces(reader, document.pieces);
    if (key != "value") return fail(ErrorKind::kEngine, "a value document has no {}", schema::quote_short(key));
    auto value = reader.read_verbatim();
    if (!value) return fail(value.error());
    document.value = *value;
    return {};
  });
  if (!read) return fail(read.error());
  if (auto ended = reader.expect_end(); !ended) return fail(ended.error());
  if (document.value.empty()) return fail(ErrorKind::kEngine, "a value document without \"value\"");
  return document;
}

Result<uint64_t> index_of(const Frame& frame) {
  auto index = unsigned_field(frame.body, "index");
  if (index) return index;
  return fail(index.error().kind, "the runtime sent a malformed {}: {}", schema::quote_short(frame.type()),
              index.error().message);
}

struct ErrorDocument {
  InstructionErrorKind kind = InstructionErrorKind::kEngine;
  std::string message;
  std::string traceback;
  std::optional<schema::GpuAccess> gpu_access;
};

/// Those of its members that only gpu_access has.
Result<std::optional<schema::GpuAccess>> gpu_access_of(InstructionErrorKind kind,
                                                       std::map<std::string, std::string>& members) {
  const bool is_complete = members.contains("cuda_call") && members.contains("location");
  if (kind != InstructionErrorKind::kGpuAccess) {
    if (!members.contains("cuda_call") && !members.contains("location")) return std::optional<schema::GpuAccess>();
    return fail(ErrorKind::kEngine, "it is of the kind {}, and says where CUDA was called", schema::wire_name(kind));
  }
  if (!is_complete) return fail(ErrorKind::kEngine, "a gpu_access error says what was called, and where");
  schema::GpuAccess access{std::move(members["cuda_call"]), std::move(members["location"]), std::nullopt};
  if (access.cuda_call.empty() || access.cuda_call.size() > limits::kCudaCallBytesMax ||
      access.location.size() > limits::kCudaLocationBytesMax) {
    return fail(ErrorKind::kEngine, "a CUDA call of {} bytes at a location of {}", access.cuda_call.size(),
                access.location.size());
  }
  return std::optional(std::move(access));
}

/// `{"kind", "message", "traceback"}`, for gpu_access with `"cuda_call"` and `"location"`.
Result<ErrorDocument> parse_error_document(std::string_view text) {
  std::map<std::string, std::string> members;
  JsonReader reader(text, /*depth_max=*/2);
  auto read = reader.read_object([&](const std::string& key) -> Status {
    constexpr std::string_view kKnown[] = {"kind", "message", "traceback", "cuda_call", "location"};
    auto value = reader.read_string();
    if (!value) return fail(value.error());
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      return fail(ErrorKind::kEngine, "it has no member {}", schema::quote_short(key));
    }
    members[key] = std::move(*value);
    return {};
  });
  if (read) read = reader.expect_end();
  if (!read) return fail(read.error());
  const auto kind = schema::instruction_error_kind_from(members["kind"]);
  if (!kind) return fail(ErrorKind::kEngine, "it is of the unknown kind {}", schema::quote_short(members["kind"]));
  auto gpu_access = gpu_access_of(*kind, members);
  if (!gpu_access) return fail(gpu_access.error());
  return ErrorDocument{*kind, std::move(members["message"]), std::move(members["traceback"]), std::move(*gpu_access)};
}

/// The type that a wire value begins with: schema::wire_value writes `{"type":"NAME"` first.
std::string type_of(std::string_view wire_text) {
  constexpr std::string_view kHead = R"({"type":")";
  KCORAL_CHECK(wire_text.starts_with(kHead));
  wire_text.remove_prefix(kHead.size());
  return std::string(wire_text.substr(0, wire_text.find('"')));
}

}  // namespace

std::string describe(const schema::Program& program, schema::InstructionIndex index) {
  const schema::Instruction& instruction = program.instructions.at(index);
  return fmt::format("instructions[{}] ({} \"{}\")", index, instruction.op(),
                     is_return(instruction) ? instruction.key : instruction.id);
}

RuntimeConversation::RuntimeConversation(const schema::Program& program, Clock& clock, AddRecord add_record)
    : program_(program), clock_(clock), add_record_(std::move(add_record)) {}

Result<RuntimeConversation::Meaning> RuntimeConversation::take(Frame frame) {
  const std::string type = frame.type();
  const auto out_of_order = [&] {
    return fail(ErrorKind::kEngine, "the runtime sent {} out of order", schema::quote_short(type));
  };
  const auto progress = [](Status status) -> Result<Meaning> {
    if (!status) return fail(status.error());
    return Meaning::kProgress;
  };
  if (over_ || type == "ready" || type == "setup_failed") return out_of_order();
  if (type == "started") return progress(take_started(frame));
  if (type == "completed") {
    if (due() != program_.instructions.size()) return out_of_order();
    if (auto finished = finish_running(); !finished) return fail(finished.error());
    over_ = true;
    return Meaning::kOver;
  }

  // The rest is about the instruction that runs.
  if (auto here = check_here(frame); !here) return fail(here.error());
  if (type == "returned") {
    auto taken = take_returned(std::move(frame));
    if (taken || taken.error().kind != ErrorKind::kResponseTooLarge) return progress(std::move(taken));
    // An honest program may do this: its own error, not ours.
    fail_here(InstructionErrorKind::kSerialization, std::move(taken.error().message));
    return Meaning::kOver;
  }
  if (type == "failed") {
    if (auto taken = take_failed(std::move(frame)); !taken) return fail(taken.error());
    return Meaning::kOver;
  }
  if (type == "lease_request" || type == "lease_release") {
    const bool wanted = type == "lease_request";
    if (lease_held_ == wanted) return out_of_order();
    lease_held_ = wanted;
    return wanted ? Meaning::kLeaseRequest : Meaning::kLeaseRelease;
  }
  return fail(ErrorKind::kEngine, "the runtime sent a frame of the unknown type {}", schema::quote_short(type));
}

Status RuntimeConversation::check_here(const Frame& frame) const {
  auto index = index_of(frame);
  if (!index) return fail(index.error());
  if (!running_ || *index != next_) {
    return fail(ErrorKind::kEngine, "the runtime sent {} for instructions[{}], which does not run",
                schema::quote_short(frame.type()), *index);
  }
  return {};
}

Status RuntimeConversation::take_started(const Frame& frame) {
  auto index = index_of(frame);
  if (!index) return fail(index.error());
  if (*index != due() || due() >= program_.instructions.size()) {
    return fail(ErrorKind::kEngine, "the runtime started instructions[{}] out of order", *index);
  }
  if (auto finished = finish_running(); !finished) return finished;
  running_ = true;
  value_taken_ = false;
  started_at_ = clock_.now();
  record_instruction("instruction_started", std::nullopt);
  return {};
}

Status RuntimeConversation::finish_running() {
  if (!running_) return {};
  if (is_return(program_.instructions[next_]) && !value_taken_) {
    return fail(ErrorKind::kEngine, "the runtime finished {} without a value", describe(program_, next_));
  }
  record_instruction("instruction_finished", to_ms(clock_.now() - started_at_));
  running_ = false;
  ++next_;
  return {};
}

Status RuntimeConversation::take_returned(Frame frame) {
  if (!is_return(program_.instructions[next_]) || value_taken_) {
    return fail(ErrorKind::kEngine, "the runtime returned a value in {} out of order", describe(program_, next_));
  }
  if (frame.fds.empty() || frame.fds.size() > 2) {
    return fail(ErrorKind::kEngine, "a returned value with {} descriptors", frame.fds.size());
  }
  if (const uint64_t bytes = total_bytes(frame.fds); bytes > limits::kReturnedBytesMax - returned_bytes_) {
    return fail(
        ErrorKind::kResponseTooLarge,
        "the value takes {} bytes, after {} that were returned before it; a program can return at most {} in all",
        bytes, returned_bytes_, limits::kReturnedBytesMax);
  }
  auto text_memory = adopt_returned(std::move(frame.fds[0]));
  if (!text_memory) return fail(text_memory.error());
  auto text = (*text_memory)->view();
  if (!text) return fail(text.error());
  auto document = parse_value_document(*text);
  if (!document && document.error().kind == ErrorKind::kResponseTooLarge) return fail(document.error());
  if (!document) return fail(ErrorKind::kEngine, "a malformed value document: {}", document.error().message);

  std::shared_ptr<const SealedMemory> data;
  if (frame.fds.size() == 2) {
    auto adopted = adopt_returned(std::move(frame.fds[1]));
    if (!adopted) return fail(adopted.error());
    data = std::move(*adopted);
  } else if (!document->pieces.empty()) {
    return fail(ErrorKind::kEngine, "a returned value has parts but no data");
  }
  std::vector<schema::Extent> extents;
  for (const auto& [offset, length] : document->pieces) extents.push_back({data, offset, length});
  if (extents.size() > limits::kPartsMax - parts_.size()) return too_many_parts();
  const size_t first_part = parts_.size();
  auto wire_text = schema::wire_value(document->value, extents, parts_);
  if (!wire_text) return fail(ErrorKind::kEngine, "a malformed value: {}", wire_text.error().message);
  returns_.push_back({program_.instructions[next_].key, std::move(*wire_text)});
  value_taken_ = true;
  record_returned(returns_.back(), first_part);
  return {};
}

/// Counts what it takes. The size is asked again: only a sealed memfd keeps the one that was seen before.
Result<std::shared_ptr<const SealedMemory>> RuntimeConversation::adopt_returned(UniqueFd fd) {
  auto adopted = SealedMemory::adopt(std::move(fd), limits::kReturnedBytesMax - returned_bytes_);
  if (adopted) returned_bytes_ += (*adopted)->size_bytes();
  return adopted;
}

Status RuntimeConversation::take_failed(Frame frame) {
  if (value_taken_ && is_return(program_.instructions[next_])) {
    return fail(ErrorKind::kEngine, "{} failed after it had returned", describe(program_, next_));
  }
  if (frame.fds.size() != 1) return fail(ErrorKind::kEngine, "a failure with {} descriptors", frame.fds.size());
  auto memory = SealedMemory::adopt(std::move(frame.fds[0]), limits::kErrorDocumentBytesMax);
  if (!memory) return fail(memory.error());
  auto text = (*memory)->view();
  if (!text) return fail(text.error());

  auto document = parse_error_document(*text);
  if (!document) return fail(ErrorKind::kEngine, "a malformed error document: {}", document.error().message);
  fail_here(document->kind, std::move(document->message));
  error_->traceback = std::move(document->traceback);
  error_->gpu_access = std::move(document->gpu_access);
  return {};
}

void RuntimeConversation::fail_here(InstructionErrorKind kind, std::string message) {
  error_ = error_here(kind, std::move(message));
  over_ = true;
  record_instruction("instruction_finished", to_ms(clock_.now() - started_at_));
}

schema::InstructionIndex RuntimeConversation::current() const {
  return std::min(next_, static_cast<schema::InstructionIndex>(program_.instructions.size() - 1));
}

schema::InstructionError RuntimeConversation::error_here(InstructionErrorKind kind, std::string message) const {
  const schema::Instruction& instruction = program_.instructions[current()];
  schema::InstructionError error;
  error.kind = kind;
  error.message = std::move(message);
  error.instruction_index = current();
  error.instruction_op = instruction.op();
  if (!is_return(instruction)) error.instruction_id = instruction.id;
  return error;
}

void RuntimeConversation::record_instruction(const char* event, std::optional<double> ms) {
  const schema::Instruction& instruction = program_.instructions[next_];
  nlohmann::ordered_json record{{"event", event}, {"index", next_}, {"op", instruction.op()}, {"id", nullptr}};
  if (!is_return(instruction)) record["id"] = instruction.id;
  if (ms) record["ms"] = *ms;
  add_record_(record);
}

void RuntimeConversation::record_returned(const schema::ReturnedValue& returned, size_t first_part) {
  // One digest for any value: that of its one part where it has one, else that of its text, which names its parts'
  // digests.
  uint64_t bytes = 0;
  for (size_t i = first_part; i < parts_.size(); ++i) bytes += parts_[i].extent.length;
  const size_t part_count = parts_.size() - first_part;
  if (part_count == 0) bytes = returned.wire_text.size();
  const Digest digest = part_count == 1 ? parts_[first_part].sha256 : Sha256::of(returned.wire_text);
  add_record_({{"event", "returned"}, {"key", returned.key}, {"sha256", digest.hex()}, {"bytes", bytes}});
  summary_.push_back({{"key", returned.key}, {"type", type_of(returned.wire_text)}, {"size", bytes}});
}

}  // namespace kcoral::executor
