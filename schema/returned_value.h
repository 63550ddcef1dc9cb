// One returned value, found again in the answer that has it (contract sections 4 and 5). Pure functions.
//
// What an answer says was checked when it was made; so a document that does not fit its parts is kEngine here.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "schema/outcome.h"
#include "schema/value.h"

namespace kcoral::schema {

struct ReturnedFolder {
  std::vector<std::string> directories;  // sorted, each after its parent
  std::vector<std::pair<std::string, Extent>> files;
};

/// The content of bytes, a file or a tensor; a folder; or any other value as the document spells it, which is a view
/// into the answer.
using ReturnedContent = std::variant<Extent, ReturnedFolder, std::string_view>;

/// kNotFound if nothing was returned as `key`.
Result<ReturnedContent> find_returned(const Answer& answer, std::string_view key);

}  // namespace kcoral::schema
