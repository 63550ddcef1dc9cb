#include "store/answers.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "schema/limits.h"

namespace kcoral::store {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

std::string header_of(const schema::Answer& answer) {
  json parts = json::array();
  for (const schema::Part& part : answer.parts) parts.push_back({part.extent.length, part.sha256.hex()});
  return json{{"version", kVersion},
              {"http_status", answer.http_status},
              {"boundary", answer.boundary},
              {"retry_after_seconds", answer.retry_after_seconds},
              {"document_bytes", answer.document.size()},
              {"document_sha256", Sha256::of(answer.document).hex()},
              {"parts", std::move(parts)}}
      .dump();
}

tl::unexpected<Error> damaged(const Uuid& request_id, std::string_view what) {
  return fail(ErrorKind::kEngine, "the stored answer of request {} is damaged: {}", request_id.str(), what);
}

struct Header {
  schema::Answer answer;  // its parts have lengths and digests, but no memory yet
  uint64_t document_bytes = 0;
  std::optional<Digest> document_sha256;
  uint64_t parts_bytes = 0;
};

Result<Header> parse_header(const Uuid& request_id, const std::string& text) {
  const json header = json::parse(text, nullptr, false);
  if (!header.is_object()) return damaged(request_id, "its header is no JSON object");
  if (header.value("version", 0) != kVersion) return damaged(request_id, "its header has an unknown version");
  Header parsed;
  try {
    parsed.answer.http_status = header.at("http_status").get<int>();
    parsed.answer.boundary = header.at("boundary").get<std::string>();
    parsed.answer.retry_after_seconds = header.at("retry_after_seconds").get<int>();
    parsed.document_bytes = header.at("document_bytes").get<uint64_t>();
    parsed.document_sha256 = Digest::parse(header.at("document_sha256").get<std::string>());
    for (const json& part : header.at("parts")) {
      const auto digest = Digest::parse(part.at(1).get<std::string>());
      if (!digest) return damaged(request_id, "a part has no digest");
      const auto bytes = part.at(0).get<uint64_t>();
      parsed.answer.parts.push_back(
          {.extent = {.memory = nullptr, .offset = parsed.parts_bytes, .length = bytes}, .sha256 = *digest});
      parsed.parts_bytes += bytes;
    }
  } catch (const json::exception& error) {
    return damaged(request_id, error.what());
  }
  return parsed;
}

Result<std::vector<std::string_view>> pieces_of(const schema::Answer& answer) {
  std::vector<std::string_view> pieces = {answer.document};
  for (const schema::Part& part : answer.parts) {
    auto bytes = part.extent.memory->view();
    if (!bytes) return fail(bytes.error());
    pieces.push_back(bytes->substr(part.extent.offset, part.extent.length));
  }
  return pieces;
}

using Sink = std::function<Status(std::string_view bytes)>;

/// `read` hands so many bytes of content to the sink.
Result<std::shared_ptr<const schema::Answer>> assemble(const Uuid& request_id, const std::string& header_text,
                                                       const std::function<Status(uint64_t bytes, Sink)>& read) {
  auto header = parse_header(request_id, header_text);
  if (!header) return fail(header.error());
  auto memory = MemoryWriter::create("kcoral-answer");
  if (!memory) return fail(memory.error());

  schema::Answer answer = std::move(header->answer);
  const Status done = read(header->document_bytes + header->parts_bytes, [&](std::string_view bytes) -> Status {
    const size_t of_document = std::min<size_t>(bytes.size(), header->document_bytes - answer.document.size());
    answer.document += bytes.substr(0, of_document);
    return memory->append(bytes.substr(of_document));
  });
  if (!done) return fail(done.error());
  if (Sha256::of(answer.document) != header->document_sha256) {
    return damaged(request_id, "its document has another digest");
  }
  auto sealed = std::move(*memory).seal();
  if (!sealed) return fail(sealed.error());
  auto all_parts = (*sealed)->view();
  if (!all_parts) return fail(all_parts.error());
  for (schema::Part& part : answer.parts) {
    part.extent.memory = *sealed;
    if (Sha256::of(all_parts->substr(part.extent.offset, part.extent.length)) != part.sha256) {
      return damaged(request_id, "a part has another digest");
    }
  }
  return std::make_shared<const schema::Answer>(std::move(answer));
}

}  // namespace

Error pruned(const Uuid& request_id) {
  return {ErrorKind::kGone, fmt::format("the answer of request {} is not kept any more", request_id.str())};
}

std::optional<SmallAnswer> encode_if_small(const schema::Answer& answer) {
  uint64_t bytes = answer.document.size();
  for (const schema::Part& part : answer.parts) bytes += part.extent.length;
  if (bytes > limits::kAnswerInRowBytesMax) return std::nullopt;
  const auto pieces = pieces_of(answer);
  if (!pieces) return std::nullopt;
  SmallAnswer small{header_of(answer), {}};
  for (const std::string_view piece : *pieces) small.content += piece;
  return small;
}

Result<std::shared_ptr<const schema::Answer>> decode_answer(const Uuid& request_id, const SmallAnswer& small) {
  return assemble(request_id, small.header, [&](uint64_t bytes, const Sink& sink) -> Status {
    if (small.content.size() != bytes) return damaged(request_id, "its content has another length");
    return sink(small.content);
  });
}

Result<ContentId> store_answer(Content& content, const Uuid& request_id, const schema::Answer& answer) {
  const auto pieces = pieces_of(answer);
  if (!pieces) return fail(pieces.error());
  return content.put_artifact(request_id, header_of(answer), *pieces);
}

Result<std::shared_ptr<const schema::Answer>> load_answer(Content& content, const Uuid& request_id, ContentId id) {
  auto text = content.artifact_header(request_id, id);
  if (!text) return fail(text.error());
  if (!*text) return fail(pruned(request_id));
  return assemble(request_id, **text,
                  [&](uint64_t bytes, const Sink& sink) { return content.read_artifact(id, bytes, sink); });
}

Result<std::string> load_document(Content& content, const Uuid& request_id, ContentId id) {
  auto text = content.artifact_header(request_id, id);
  if (!text) return fail(text.error());
  if (!*text) return fail(pruned(request_id));
  auto header = parse_header(request_id, **text);
  if (!header) return fail(header.error());
  std::string document;
  const Status read =
      content.read_artifact(id, header->document_bytes + header->parts_bytes, [&](std::string_view bytes) -> Status {
        document += bytes.substr(0, header->document_bytes - document.size());
        // The document comes first: an error is how to stop.
        if (document.size() == header->document_bytes) return fail(ErrorKind::kCancelled, "enough was read");
        return {};
      });
  if (document.size() < header->document_bytes) return fail(read.error());
  if (Sha256::of(document) != header->document_sha256) {
    return damaged(request_id, "its document has another digest");
  }
  return document;
}

}  // namespace kcoral::store
