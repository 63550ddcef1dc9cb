// GET /requests: what of the history is asked for, and a page of it. Pure functions.
//
// A label is `name` or `name=value`; times are RFC 3339; a cursor is opaque to clients, who have it from the page
// before.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "store/store.h"

namespace kcoral::gateway {

/// kParse, with a message that says what is accepted.
Result<store::HistoryQuery> parse_history_query(std::string_view query);

std::string history_document(const store::HistoryPage& page);

}  // namespace kcoral::gateway
