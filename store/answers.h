// Answers as they are kept: what a client read once, it reads again byte for byte.
//
// It promises: a loaded answer has the document, parts, boundary and headers of the one that was stored, and every
// digest was checked on the way. Thread-safe; artifacts block on the disk.
//
// A small answer is kept with its request's row, whose commit makes it durable: nobody waits for a second sync. A large
// one is an artifact, which a row refers to.
//
// The format of both: a header and a content. The header is a JSON object {"version": 1, "http_status", "boundary",
// "retry_after_seconds", "document_bytes", "document_sha256", "parts": [[bytes, sha256], ...]}; the content is the
// document and then the parts, one after another.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/error.h"
#include "base/uuid.h"
#include "schema/outcome.h"
#include "store/content.h"

namespace kcoral::store {

struct SmallAnswer {
  std::string header;
  std::string content;
};
/// Where an answer is: an artifact, or with its request.
using KeptAnswer = std::variant<ContentId, SmallAnswer>;

/// kGone: it is known that the request has ended, and not any more with what.
Error pruned(const Uuid& request_id);

/// nullopt if it is not small (limits::kAnswerInRowBytesMax), or its parts cannot be read.
std::optional<SmallAnswer> encode_if_small(const schema::Answer& answer);
/// kEngine if it is damaged.
Result<std::shared_ptr<const schema::Answer>> decode_answer(const Uuid& request_id, const SmallAnswer& small);

/// Durable after the next sync of the content.
Result<ContentId> store_answer(Content& content, const Uuid& request_id, const schema::Answer& answer);

/// kGone if it is not stored any more; kEngine if it is damaged. All parts share one sealed memory.
Result<std::shared_ptr<const schema::Answer>> load_answer(Content& content, const Uuid& request_id, ContentId id);

/// Only its document; errors as above.
Result<std::string> load_document(Content& content, const Uuid& request_id, ContentId id);

}  // namespace kcoral::store
