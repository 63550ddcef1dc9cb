// One of a program's output streams: read for as long as the program writes, kept up to a limit.
//
// A program is never held up by its limit: what goes beyond is read and dropped. Belongs to its loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace kcoral::executor {

class OutputCapture {
 public:
  /// Makes the pipe; `theirs` is the end for the program. What comes before `start` is nobody's, and dropped.
  static Result<std::unique_ptr<OutputCapture>> create(EventLoop& loop, UniqueFd& theirs);
  ~OutputCapture();
  OutputCapture(const OutputCapture&) = delete;
  OutputCapture& operator=(const OutputCapture&) = delete;

  /// Begins anew: from now on `limit_bytes` are kept. `on_truncated` is called once, when there are more.
  void start(uint64_t limit_bytes, std::function<void()> on_truncated);

  /// From now on what comes is nobody's again.
  void stop();

  /// Reads what stands in the pipe at this moment, and no more: somebody may go on writing.
  void read_what_is_there();

  const std::string& bytes() const { return bytes_; }
  bool is_truncated() const { return is_truncated_; }

 private:
  OutputCapture(EventLoop& loop, UniqueFd pipe) : loop_(loop), pipe_(std::move(pipe)) {}
  void read_up_to(size_t bytes_max);
  void keep(std::string_view bytes);
  void close();

  EventLoop& loop_;
  UniqueFd pipe_;
  bool is_started_ = false;
  uint64_t limit_bytes_ = 0;
  std::function<void()> on_truncated_;
  std::string bytes_;
  bool is_truncated_ = false;
};

}  // namespace kcoral::executor
