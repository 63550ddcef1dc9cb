// What waits to be sent on one connection: text and pieces of sealed memory, in order.
//
// Text is sent by sendmsg with MSG_NOSIGNAL, sealed memory by sendfile, without a copy in this process; text is let go
// piece by piece. sendfile has no MSG_NOSIGNAL: the I/O threads block SIGPIPE.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "schema/outcome.h"
#include "schema/value.h"

namespace kcoral::gateway {

class OutputQueue {
 public:
  enum class Progress {
    kDone,     // nothing is left
    kBlocked,  // the socket takes no more for now
    kPaused,   // `bytes_max` were sent; there is more
    kBroken,   // the peer is gone
  };

  void add(std::string text);
  /// What its views point to is `owner`'s, which is kept alive until it is sent.
  void add_body(std::vector<schema::Answer::Segment> body, const std::shared_ptr<const void>& owner);

  bool empty() const { return pieces_.empty(); }
  /// Sends up to about `bytes_max`; adds what was sent to `sent`.
  Progress flush(int fd, size_t bytes_max, size_t& sent);

 private:
  struct Piece {
    std::shared_ptr<const void> owner;  // of what `rest` points to
    std::string_view rest;
    schema::Extent extent;  // used instead if its memory is set

    size_t size() const { return extent.memory ? extent.length : rest.size(); }
  };

  void add_view(std::shared_ptr<const void> owner, std::string_view text);
  ssize_t send_texts(int fd) const;
  ssize_t send_extent(int fd, size_t bytes_max) const;
  void drop_sent(size_t bytes);

  std::deque<Piece> pieces_;  // none of them empty
};

}  // namespace kcoral::gateway
