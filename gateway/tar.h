// A tar archive (POSIX ustar, with pax records where ustar has no room) of content that lies elsewhere. Pure functions
// and plain values.
//
// It stands here in place of libarchive, which would have all content copied through its own writer: here an archive is
// headers around extents of sealed memory, which go to the socket as they are. What is written is a few fields of 512
// bytes; tests unpack it with tar.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "schema/outcome.h"
#include "schema/value.h"

namespace kcoral::gateway {

class TarWriter {
 public:
  /// `modified_at` is said of everything in it.
  explicit TarWriter(WallTime modified_at) : modified_at_(modified_at) {}

  /// `path` is relative and UTF-8, without a final slash. Whoever unpacks gets mode 0755 and 0644, less his umask.
  void add_directory(std::string_view path);
  /// Requires: shorter than 8 GiB.
  void add_file(std::string_view path, schema::Extent content);
  std::vector<schema::Answer::Segment> finish() &&;

 private:
  void add_header(std::string_view path, char type, uint64_t bytes);
  void pad(uint64_t bytes);

  const WallTime modified_at_;
  std::vector<schema::Answer::Segment> segments_;
  std::string framing_;  // not yet among the segments
};

}  // namespace kcoral::gateway
