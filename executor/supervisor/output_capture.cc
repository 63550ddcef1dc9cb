#include "executor/supervisor/output_capture.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace kcoral::executor {
namespace {

// What a program can write while the executor does something else. Only while one runs: the kernel allows a user 64 MiB
// of pipes, and gives out small ones beyond that.
constexpr int kPipeBytes = 1 << 20;
constexpr size_t kReadBytes = 64 * 1024;

}  // namespace

Result<std::unique_ptr<OutputCapture>> OutputCapture::create(EventLoop& loop, UniqueFd& theirs) {
  std::array<int, 2> pipe;
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return fail_errno("pipe2");
  UniqueFd ours(pipe[0]);
  theirs.reset(pipe[1]);
  // Only our end: the flag belongs to the open file, and a program expects blocking writes.
  if (::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl", "pipe");
  const int fd = ours.get();
  std::unique_ptr<OutputCapture> capture(new OutputCapture(loop, std::move(ours)));
  auto watched = loop.watch(fd, EPOLLIN, [raw = capture.get()](uint32_t) { raw->read_up_to(kPipeBytes); });
  if (!watched) return fail(watched.error());
  return capture;
}

OutputCapture::~OutputCapture() { close(); }

void OutputCapture::close() {
  if (!pipe_) return;
  loop_.unwatch(pipe_.get());
  pipe_.reset();
}

void OutputCapture::start(uint64_t limit_bytes, std::function<void()> on_truncated) {
  is_started_ = false;
  read_what_is_there();
  ::fcntl(pipe_.get(), F_SETPIPE_SZ, kPipeBytes);
  is_started_ = true;
  is_truncated_ = false;
  bytes_.clear();
  limit_bytes_ = limit_bytes;
  on_truncated_ = std::move(on_truncated);
}

void OutputCapture::stop() {
  is_started_ = false;
  on_truncated_ = nullptr;
}

void OutputCapture::read_what_is_there() {
  int available = 0;
  if (pipe_ && ::ioctl(pipe_.get(), FIONREAD, &available) == 0) read_up_to(static_cast<size_t>(available));
}

void OutputCapture::read_up_to(size_t bytes_max) {
  std::array<char, kReadBytes> buffer;
  while (bytes_max > 0 && pipe_) {
    const ssize_t size = ::read(pipe_.get(), buffer.data(), std::min(buffer.size(), bytes_max));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return;
    if (size <= 0) return close();
    bytes_max -= static_cast<size_t>(size);
    keep(std::string_view(buffer.data(), static_cast<size_t>(size)));
  }
}

void OutputCapture::keep(std::string_view bytes) {
  if (!is_started_) return;
  const size_t room = static_cast<size_t>(limit_bytes_) - bytes_.size();
  bytes_.append(bytes.substr(0, room));
  if (bytes.size() <= room || is_truncated_) return;
  is_truncated_ = true;
  on_truncated_();
}

}  // namespace kcoral::executor
