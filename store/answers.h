// Answers as artifacts: what a client read once, it reads again byte for byte.
//
// It promises: a loaded answer has the document, parts, boundary and headers of the one that was stored, and every
// digest was checked on the way. Thread-safe; blocks on the disk.
//
// The format: the artifact's header is a JSON object {"version": 1, "http_status", "boundary", "retry_after_seconds",
// "document_bytes", "document_sha256", "parts": [[bytes, sha256], ...]}; its content is the document and then the
// parts, one after another.
#pragma once

#include <memory>

#include "base/error.h"
#include "base/uuid.h"
#include "schema/outcome.h"
#include "store/content.h"

namespace kcoral::store {

/// Durable after the next sync of the content.
Result<ContentId> store_answer(Content& content, const Uuid& request_id, const schema::Answer& answer);

/// kGone if it is not stored any more; kEngine if it is damaged. All parts share one sealed memory.
Result<std::shared_ptr<const schema::Answer>> load_answer(Content& content, const Uuid& request_id, ContentId id);

}  // namespace kcoral::store
