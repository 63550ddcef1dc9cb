// Returned values: from the form in which a runtime hands them over to the form of the wire (contract section 4).
//
// A runtime is part of the program's own process, so nothing that it says is believed: types, fields, nesting, digests
// and lengths are all checked here, and digests are computed here.
//
// The runtime's form differs from the wire's in one way: a bytes, file or tensor value has `"part": k`, an index into
// the extents that came with it, and no "sha256". Members stand in the order in which section 4 writes them, "type"
// first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/memfd.h"
#include "base/sha256.h"

namespace kcoral::schema {

/// A piece of sealed content.
struct Extent {
  std::shared_ptr<const SealedMemory> memory;
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// One `return:<n>` part of an answer.
struct Part {
  Extent extent;
  Digest sha256;
};

/// Checks `runtime_text`, computes digests and rewrites it for the wire. `extents` are the pieces that its part indices
/// refer to: each exactly once, in ascending order, inside its memory, and together no longer than it, so that the work
/// is bounded by what was sent. Appends to `parts`, which holds the parts of the returns before; numbers go on from its
/// size. An error (kEngine) means that the runtime sent no value: nothing was appended.
Result<std::string> wire_value(std::string_view runtime_text, const std::vector<Extent>& extents,
                               std::vector<Part>& parts);

}  // namespace kcoral::schema
