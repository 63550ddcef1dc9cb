// The body of a submission (contract section 2), checked and hashed while it streams in: the program is collected as
// text, each blob goes into sealed memory piece by piece. Nothing is kept twice, and nothing before the budget over all
// bodies has room for it.
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
#include "gateway/body_budget.h"
#include "gateway/multipart.h"
#include "schema/program.h"
#include "store/store.h"

namespace kcoral::gateway {

struct ReceivedProgram {
  std::string text;  // verbatim
  Digest sha256;     // of `text`
  schema::Program program;
  std::vector<store::StagedBlob> staged;  // distinct, each referenced by the program
  std::unique_ptr<BodyShare> share;       // what `text` and `staged` have of the budget
};

class SubmissionReader final : private MultipartSink {
 public:
  /// kParse for a request that is not multipart/form-data.
  static Result<std::unique_ptr<SubmissionReader>> create(std::string_view content_type,
                                                          std::shared_ptr<BodyBudget> budget);

  /// kParse for what the contract refuses, kBusy when the budget has no room. The body's own size is not looked at: its
  /// framing did that. Requires: no call after an error.
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

  explicit SubmissionReader(std::shared_ptr<BodyBudget> budget)
      : share_(std::make_unique<BodyShare>(std::move(budget))) {}

  Status on_part_begin(const std::string& name, const std::string& content_type) override;
  Status on_part_data(std::string_view bytes) override;
  Status on_part_end() override;
  Status begin_program(const std::string& content_type);
  Status begin_blob(const std::string& name, const std::string& content_type);

  std::unique_ptr<BodyShare> share_;
  std::optional<MultipartParser> parser_;  // set by `create`
  std::optional<std::string> program_text_;
  Sha256 program_hash_;
  std::optional<Blob> blob_;  // while its part streams; otherwise the part is the program
  std::unordered_set<Digest> blob_names_;
  std::vector<store::StagedBlob> staged_;
};

}  // namespace kcoral::gateway
