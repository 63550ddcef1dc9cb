// A program as a client sends it, checked: contract sections 2 and 3. Everything that holds a Program may rely on every
// rule of these sections that can be checked without running it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "schema/dtype.h"
#include "schema/limits.h"

namespace kcoral::schema {

/// Index into Program::instructions of the instruction that made a handle.
using InstructionIndex = uint32_t;

struct UploadModule {
  enum class Language { kPython, kCuda };
  Language language = Language::kPython;
};
struct UploadTensor {
  Digest blob;
  const Dtype* dtype = nullptr;
  std::vector<uint64_t> shape;
};
struct UploadBytes {
  Digest blob;
};
struct UploadFile {
  Digest blob;
  std::string path;  // normalised
};
struct UploadLibrary {
  Digest blob;
};
struct GetFunction {
  InstructionIndex module = 0;
  bool cpu_only = false;
};
struct Run {
  InstructionIndex fn = 0;
};
struct ReturnValue {
  InstructionIndex value = 0;
};
struct ReturnPath {
  enum class Kind { kFile, kFolder };
  Kind kind = Kind::kFile;
};

struct Instruction {
  using Operation = std::variant<UploadModule, UploadTensor, UploadBytes, UploadFile, UploadLibrary, GetFunction, Run,
                                 ReturnValue, ReturnPath>;
  std::string id;   // the handle's name; empty for a return
  std::string key;  // of a return; empty for the rest
  Operation operation;

  /// "upload", "get_function", "run" or "return".
  std::string_view op() const;
};

struct Options {
  double timeout_seconds = limits::kTimeoutSecondsDefault;
  uint64_t output_limit_bytes = limits::kOutputLimitBytesDefault;
  int gpu_count = 1;
  int priority = 0;
  std::map<std::string, std::string> labels;
  std::optional<int> max_attempts;  // not given: the endpoint's own default
};

/// The server's own bounds, which requests are clamped to or measured by.
struct ProgramBounds {
  double timeout_seconds_max = limits::kTimeoutSecondsMax;
  uint64_t output_limit_bytes_max = limits::kOutputLimitBytesMax;
  int gpu_count_max = 1;  // 1 on a CPU server
};

struct Program {
  std::vector<Instruction> instructions;
  Options options;            // clamped to the bounds
  std::vector<Digest> blobs;  // distinct, in the order of first use

  /// The length that the program demands of a blob (from its tensor uploads), in the order of the instructions.
  struct BlobLength {
    InstructionIndex instruction;
    Digest blob;
    uint64_t bytes;
  };
  std::vector<BlobLength> tensor_lengths;
};

/// Parses and checks `text`. Every violation is kParse with a message that names the instruction (by index and id) and
/// the field, e.g. `instructions[3] (upload "x"): field "dtype": "float15" is none of bool uint8 ...`.
Result<Program> parse_program(std::string_view text, const ProgramBounds& bounds);

/// Checks that `blob` has the length that each tensor upload of it demands.
Status check_blob_length(const Program& program, const Digest& blob, uint64_t bytes);

}  // namespace kcoral::schema
