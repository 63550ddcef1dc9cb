#include "gateway/output.h"

#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace kcoral::gateway {
namespace {

constexpr size_t kVectorsMax = 64;  // of one sendmsg

}  // namespace

void OutputQueue::add_view(std::shared_ptr<const void> owner, std::string_view text) {
  if (!text.empty()) pieces_.push_back({std::move(owner), text, {}});
}

void OutputQueue::add(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  const std::string_view view = *owner;
  add_view(std::move(owner), view);
}

void OutputQueue::add_body(std::vector<schema::Answer::Segment> body, const std::shared_ptr<const void>& owner) {
  for (schema::Answer::Segment& segment : body) {
    if (auto* text = std::get_if<std::string>(&segment)) {
      add(std::move(*text));
    } else if (const auto* view = std::get_if<std::string_view>(&segment)) {
      add_view(owner, *view);
    } else if (auto& extent = std::get<schema::Extent>(segment); extent.length > 0) {
      pieces_.push_back({nullptr, {}, std::move(extent)});
    }
  }
}

ssize_t OutputQueue::send_texts(int fd) const {
  iovec vectors[kVectorsMax];
  size_t count = 0;
  bool more = false;
  for (const Piece& piece : pieces_) {
    more = piece.extent.memory != nullptr || count == kVectorsMax;
    if (more) break;
    vectors[count++] = {const_cast<char*>(piece.rest.data()), piece.rest.size()};
  }
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
}

ssize_t OutputQueue::send_extent(int fd, size_t bytes_max) const {
  const schema::Extent& extent = pieces_.front().extent;
  auto offset = static_cast<off_t>(extent.offset);
  const ssize_t sent = ::sendfile(fd, extent.memory->fd(), &offset, std::min<size_t>(extent.length, bytes_max));
  if (sent != 0) return sent;
  errno = EIO;  // the extent reaches beyond its memory: what was promised cannot be sent
  return -1;
}

void OutputQueue::drop_sent(size_t bytes) {
  while (bytes > 0) {
    Piece& front = pieces_.front();
    const size_t taken = std::min(bytes, front.size());
    bytes -= taken;
    if (taken == front.size()) {
      pieces_.pop_front();
    } else if (front.extent.memory != nullptr) {
      front.extent.offset += taken;
      front.extent.length -= taken;
    } else {
      front.rest.remove_prefix(taken);
    }
  }
}

OutputQueue::Progress OutputQueue::flush(int fd, size_t bytes_max, size_t& sent) {
  while (!pieces_.empty()) {
    if (bytes_max == 0) return Progress::kPaused;
    const bool is_extent = pieces_.front().extent.memory != nullptr;
    const ssize_t written = is_extent ? send_extent(fd, bytes_max) : send_texts(fd);
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Progress::kBlocked : Progress::kBroken;
    }
    const auto bytes = static_cast<size_t>(written);
    sent += bytes;
    bytes_max -= std::min(bytes, bytes_max);
    drop_sent(bytes);
  }
  return Progress::kDone;
}

}  // namespace kcoral::gateway
