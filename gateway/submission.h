// The body of a submission (contract section 2), checked and hashed while it streams in: the program is collected as
// text, each blob goes into sealed memory piece by piece. Nothing is kept twice.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/memfd.h"
#include "base/sha256.h"
#include "gateway/multipart.h"
#include "schema/program.h"
#include "store/store.h"

namespace kcoral::gateway {

struct ReceivedProgram {
  std::string text;  // verbatim
  Digest sha256;     // of `text`
  schema::Program program;
  std::vector<store::StagedBlob> staged;  // distinct, each referenced by the program
};

class SubmissionReader final : private MultipartSink {
 public:
  /// kParse for a request that is not multipart/form-data.
  static Result<std::unique_ptr<SubmissionReader>> create(std::string_view content_type, uint64_t body_bytes_max);

  /// kParse for what the contract refuses, kRequestTooLarge as soon as the body passes its limit.
  /// Requires: no call after an error.
  Status feed(std::string_view bytes);

  /// Requires: called once, after the last byte.
  Result<ReceivedProgram> finish(const schema::ProgramBounds& bounds);

 private:
  /// A blob on its way.
  struct Blob {
    Digest expected;
    MemoryWriter writer;
    Sha256 hash;
  };

  explicit SubmissionReader(uint64_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  Status on_part_begin(const std::string& name, const std::string& content_type) override;
  Status on_part_data(std::string_view bytes) override;
  Status on_part_end() override;
  Status begin_program(const std::string& content_type);
  Status begin_blob(const std::string& name, const std::string& content_type);

  const uint64_t body_bytes_max_;
  uint64_t body_bytes_ = 0;
  std::optional<MultipartParser> parser_;  // set by `create`
  std::optional<std::string> program_text_;
  Sha256 program_hash_;
  std::optional<Blob> blob_;  // while its part streams; otherwise the part is the program
  std::unordered_set<Digest> blob_names_;
  std::vector<store::StagedBlob> staged_;
};

/// The message of a 413.
Error request_too_large(uint64_t body_bytes_max);

}  // namespace kcoral::gateway
