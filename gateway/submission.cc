#include "gateway/submission.h"

#include <algorithm>

#include "schema/json_reader.h"
#include "schema/limits.h"

namespace kcoral::gateway {
namespace {

constexpr std::string_view kBlobPrefix = "blob:";

/// A client's text for a message: bounded, and UTF-8 whatever it was.
std::string shown(std::string_view text) { return schema::utf8_with_replacement(text.substr(0, 100)); }

Status check_content_type(std::string_view part, const std::string& content_type, std::string_view wanted) {
  if (content_type == wanted) return {};
  return fail(ErrorKind::kParse, "part \"{}\" must have the Content-Type {}", part, wanted);
}

}  // namespace

Result<std::unique_ptr<SubmissionReader>> SubmissionReader::create(std::string_view content_type,
                                                                   std::shared_ptr<BodyBudget> budget) {
  std::unique_ptr<SubmissionReader> reader(new SubmissionReader(std::move(budget)));
  auto parser = MultipartParser::create(content_type, *reader);
  if (!parser) return fail(parser.error());
  reader->parser_ = std::move(*parser);
  return reader;
}

Status SubmissionReader::feed(std::string_view bytes) { return parser_->feed(bytes); }

Status SubmissionReader::on_part_begin(const std::string& name, const std::string& content_type) {
  if (name == "program") return begin_program(content_type);
  if (name.starts_with(kBlobPrefix)) return begin_blob(name, content_type);
  return fail(ErrorKind::kParse, "part \"{}\" is neither \"program\" nor \"blob:<sha256>\"", shown(name));
}

Status SubmissionReader::begin_program(const std::string& content_type) {
  if (program_text_) return fail(ErrorKind::kParse, "part \"program\" was sent twice");
  program_text_.emplace();
  return check_content_type("program", content_type, "application/json");
}

Status SubmissionReader::begin_blob(const std::string& name, const std::string& content_type) {
  const auto expected = Digest::parse(std::string_view(name).substr(kBlobPrefix.size()));
  if (!expected) {
    return fail(ErrorKind::kParse, "part \"{}\": a blob's name is blob: and 64 lowercase hexadecimal digits",
                shown(name));
  }
  if (auto checked = check_content_type(name, content_type, "application/octet-stream"); !checked) return checked;
  if (!blob_names_.insert(*expected).second) return fail(ErrorKind::kParse, "part \"{}\" was sent twice", name);
  if (blob_names_.size() > limits::kBlobsMax) {
    return fail(ErrorKind::kParse, "more than {} blobs were sent", limits::kBlobsMax);
  }
  if (auto taken = share_->take_blob(); !taken) return taken;
  auto writer = MemoryWriter::create("kcoral-blob");
  if (!writer) return fail(writer.error());
  blob_.emplace(Blob{*expected, std::move(*writer), Sha256()});
  return {};
}

Status SubmissionReader::on_part_data(std::string_view bytes) {
  if (auto taken = share_->take_bytes(bytes.size()); !taken) return taken;
  const auto raw = std::as_bytes(std::span(bytes));
  if (!blob_) {
    program_hash_.update(raw);
    program_text_->append(bytes);
    return {};
  }
  blob_->hash.update(raw);
  return blob_->writer.append(raw);
}

Status SubmissionReader::on_part_end() {
  if (!blob_) return {};
  const Digest actual = blob_->hash.finish();
  if (actual != blob_->expected) {
    return fail(ErrorKind::kParse, "part \"blob:{}\": its bytes hash to {}", blob_->expected.hex(), actual.hex());
  }
  auto content = std::move(blob_->writer).seal();
  if (!content) return fail(content.error());
  staged_.push_back({actual, std::move(*content)});
  blob_.reset();
  return {};
}

Result<ReceivedProgram> SubmissionReader::finish(const schema::ProgramBounds& bounds) {
  if (auto complete = parser_->finish(); !complete) return fail(complete.error());
  if (!program_text_) return fail(ErrorKind::kParse, "part \"program\" is missing");
  auto program = schema::parse_program(*program_text_, bounds);
  if (!program) return fail(program.error());
  std::unordered_set<Digest> referenced(program->blobs.begin(), program->blobs.end());
  for (const auto& blob : staged_) {
    if (!referenced.contains(blob.sha256)) {
      return fail(ErrorKind::kParse, "part \"blob:{}\": no upload refers to it", blob.sha256.hex());
    }
  }
  return ReceivedProgram{std::move(*program_text_), program_hash_.finish(), std::move(*program), std::move(staged_),
                         std::move(share_)};
}

}  // namespace kcoral::gateway
