// One of a program's output streams: read for as long as the program writes, kept up to a limit.
//
// A program is never held up by its limit: what goes beyond is read and dropped. What is kept lies in memory that
// others can read while it grows; a program that prints nothing has none. Belongs to its loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/event_loop.h"
#include "base/memfd.h"
#include "base/unique_fd.h"

namespace kcoral::executor {

class OutputCapture {
 public:
  struct Handlers {
    std::function<void()> begun;                      // once: the first bytes are kept
    std::function<void()> truncated;                  // once: there are more than are kept
    std::function<void(const Error& reason)> failed;  // once: memory or descriptors ran short, and what came is lost
  };

  /// Makes the pipe; `theirs` is the end for the program. What comes before `start` is nobody's, and dropped.
  static Result<std::unique_ptr<OutputCapture>> create(EventLoop& loop, UniqueFd& theirs);
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  /// Begins anew: from now on `limit_bytes` are kept.
  void start(uint64_t limit_bytes, Handlers handlers);

  /// From now on what comes is nobody's again, and nothing is kept here. Whoever reads along keeps what there was.
  void stop();

  /// Reads what stands in the pipe at this moment, and no more: somebody may go on writing.
  void read_what_is_there();

  /// What is kept; an error if it could not be.
  Result<std::string> bytes() const;
  /// The memory of what is kept and will be, to read along. Requires: it has begun.
  Result<UniqueFd> open_for_reading() const { return kept_->open_for_reading(); }
  bool is_truncated() const { return is_truncated_; }

 private:
  OutputCapture(EventLoop& loop, UniqueFd pipe) : loop_(loop), pipe_(std::move(pipe)) {}
  void read_up_to(size_t bytes_max);
  void keep(std::string_view bytes);
  Status append(std::string_view bytes);
  void close();

  EventLoop& loop_;
  UniqueFd pipe_;
  bool is_started_ = false;
  uint64_t limit_bytes_ = 0;
  Handlers handlers_;
  std::optional<MemoryWriter> kept_;  // from the first byte on
  std::optional<Error> failure_;
  bool is_truncated_ = false;
};

}  // namespace kcoral::executor
