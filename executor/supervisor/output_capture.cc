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

void OutputCapture::start(uint64_t limit_bytes, Handlers handlers) {
  stop();
  read_what_is_there();
  ::fcntl(pipe_.get(), F_SETPIPE_SZ, kPipeBytes);
  is_started_ = true;
  is_truncated_ = false;
  failure_.reset();
  limit_bytes_ = limit_bytes;
  handlers_ = std::move(handlers);
}

void OutputCapture::stop() {
  is_started_ = false;
  handlers_ = {};
  kept_.reset();
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
  const size_t room = static_cast<size_t>(limit_bytes_ - (kept_ ? kept_->size_bytes() : 0));
  if (auto appended = append(bytes.substr(0, room)); !appended) {
    is_started_ = false;
    failure_ = appended.error();
    return handlers_.failed(*failure_);
  }
  if (bytes.size() <= room || is_truncated_) return;
  is_truncated_ = true;
  handlers_.truncated();
}

Status OutputCapture::append(std::string_view bytes) {
  if (bytes.empty()) return {};
  const bool is_first = !kept_;
  if (is_first) {
    auto memory = MemoryWriter::create("kcoral-output");
    if (!memory) return fail(memory.error());
    kept_.emplace(std::move(*memory));
  }
  if (auto appended = kept_->append(bytes); !appended) return appended;
  if (is_first) handlers_.begun();
  return {};
}

Result<std::string> OutputCapture::bytes() const {
  if (failure_) return fail(*failure_);
  return kept_ ? kept_->content() : std::string();
}

}  // namespace kcoral::executor
