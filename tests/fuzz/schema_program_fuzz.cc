// Programs as clients may send them: whatever the bytes, `parse_program` answers with a program whose every rule holds
// or with an error that can be sent.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "schema/json_reader.h"
#include "schema/path.h"
#include "schema/program.h"

using namespace kcoral;
using namespace kcoral::schema;

namespace {

void check_accepted(std::string_view text, const Program& program, const ProgramBounds& bounds) {
  KCORAL_CHECK(is_valid_utf8(text));
  KCORAL_CHECK(!program.instructions.empty());
  std::set<std::string_view> ids;
  std::set<std::string_view> keys;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    KCORAL_CHECK(instruction.id.empty() != instruction.key.empty());
    KCORAL_CHECK(instruction.id.empty() || ids.insert(instruction.id).second);
    KCORAL_CHECK(instruction.key.empty() || keys.insert(instruction.key).second);
    if (const auto* run = std::get_if<Run>(&instruction.operation)) KCORAL_CHECK(run->fn < i);
    if (const auto* get = std::get_if<GetFunction>(&instruction.operation)) KCORAL_CHECK(get->module < i);
    if (const auto* value = std::get_if<ReturnValue>(&instruction.operation)) KCORAL_CHECK(value->value < i);
    if (const auto* file = std::get_if<UploadFile>(&instruction.operation)) {
      KCORAL_CHECK(normalise_path(file->path).value_or("") == file->path);
    }
    if (const auto* tensor = std::get_if<UploadTensor>(&instruction.operation)) {
      KCORAL_CHECK(check_blob_length(program, tensor->blob, *tensor_bytes(*tensor->dtype, tensor->shape)));
    }
  }
  KCORAL_CHECK(std::set<Digest>(program.blobs.begin(), program.blobs.end()).size() == program.blobs.size());
  const Options& options = program.options;
  KCORAL_CHECK(options.timeout_seconds > 0 && options.timeout_seconds <= bounds.timeout_seconds_max);
  KCORAL_CHECK(options.output_limit_bytes <= bounds.output_limit_bytes_max);
  KCORAL_CHECK(options.gpu_count >= 1 && options.gpu_count <= bounds.gpu_count_max);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const ProgramBounds bounds{.gpu_count_max = 2};
  const auto program = parse_program(text, bounds);
  if (program) {
    check_accepted(text, *program, bounds);
  } else {
    KCORAL_CHECK(program.error().kind == ErrorKind::kParse);
    KCORAL_CHECK(is_valid_utf8(program.error().message));
    KCORAL_CHECK(program.error().message.size() < 2000);
  }
  return 0;
}
