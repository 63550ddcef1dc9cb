#include "gateway/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/failpoint.h"

namespace kcoral::gateway {
namespace {

// Of one connection before its thread looks at the others again: about a millisecond of hashing or copying.
constexpr size_t kReadBudgetBytes = limits::kMiB;
constexpr size_t kWriteBudgetBytes = 4 * limits::kMiB;
// Says that a body is awaited, or nothing at all.
constexpr const char* kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 413:
      return "Content Too Large";
    case 429:
      return "Too Many Requests";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

/// RFC 9110's fixed form, in English whatever the locale.
std::string http_date(WallTime time) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t seconds = std::chrono::duration_cast<std::chrono::seconds>(time.time_since_epoch()).count();
  std::tm parts;
  gmtime_r(&seconds, &parts);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[parts.tm_wday], parts.tm_mday,
                     kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace

Connection::Connection(IoThread& io, Dispatcher& dispatcher, const ConnectionLimits& limits, int fd, PeerAddress peer)
    : io_(io),
      dispatcher_(dispatcher),
      limits_(limits),
      fd_(fd),
      peer_(std::move(peer)),
      chunked_(limits.body_bytes_max),
      progress_at_(io.clock.now()),
      phase_began_at_(progress_at_) {}

Connection::~Connection() {
  if (timer_) io_.timers.cancel(*timer_);
}

void Connection::on_ready(bool readable, bool writable, bool hangup) {
  if (phase_ == Phase::kClosed) return;
  readable_ |= readable;
  writable_ |= writable;
  if (hangup) return close();
  pump();
}

void Connection::respond(Response response) {
  if (phase_ == Phase::kClosed) return;
  KCORAL_CHECK(!response_.has_value());
  response_ = std::move(response);
  pump();
}

void Connection::stop() {
  if (phase_ == Phase::kClosed) return;
  stopping_ = true;
  if (phase_ != Phase::kSending && phase_ != Phase::kLingering) return close();
  close_after_answer_ = true;
  pump();
}

// --- the loop ---

void Connection::pump() {
  if (pumping_) return;  // an answer given from inside: the loop that is running sees it
  pumping_ = true;
  read_budget_ = kReadBudgetBytes;
  write_budget_ = kWriteBudgetBytes;
  while (step()) {
  }
  input_.keep();
  pumping_ = false;
  arm_timer();
}

/// Does the next thing; false when there is nothing to do before the next event.
bool Connection::step() {
  switch (phase_) {
    case Phase::kHead:
    case Phase::kBody:
      return step_input();
    case Phase::kWaiting:
      return step_waiting();
    case Phase::kSending:
      return step_sending();
    case Phase::kLingering:
      return step_lingering();
    case Phase::kClosed:
      return false;
  }
  return false;
}

bool Connection::step_input() {
  if (response_) {
    begin_answer();
    return true;
  }
  if (!output_.empty() && !flush_output()) return phase_ == Phase::kClosed;  // "100 Continue" goes first
  const bool taken = phase_ == Phase::kHead ? take_head() : take_body();
  return taken || fill();
}

bool Connection::step_waiting() {
  if (response_) {
    begin_answer();
    return true;
  }
  if (readable_ && !probe_at_ && is_half_closed()) probe_at_ = io_.clock.now() + limits_.probe;
  if (!output_.empty()) flush_output();
  return false;
}

/// What a client sent ahead hides it.
bool Connection::is_half_closed() const {
  char next;
  return head_.version == HttpVersion::k11 && ::recv(fd_, &next, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/// A client that is gone answers it with a reset, which closes the connection.
void Connection::probe() {
  probe_at_ = io_.clock.now() + limits_.probe;
  output_.add(kContinue);
  pump();
}

bool Connection::step_sending() {
  if (!flush_output()) {
    if (phase_ == Phase::kSending) failpoint("gateway.answer.half_sent");
    return false;
  }
  end_answer();
  return true;
}

bool Connection::step_lingering() {
  input_.clear();
  if (fill()) return true;
  if (stopping_ && !readable_) close();  // all that came was read: closing now resets nothing
  return false;
}

/// A later round goes on: others had to wait long enough.
void Connection::continue_later() {
  io_.mailbox->post([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->pump();
  });
}

// --- reading ---

/// Reads once; true if that may let the loop go on.
bool Connection::fill() {
  if (input_closed_) return end_of_input();
  if (!readable_) return false;
  if (read_budget_ == 0) {
    continue_later();
    return false;
  }
  input_.keep();
  ssize_t count;
  do {
    count = ::recv(fd_, io_.read_buffer.data(), io_.read_buffer.size(), MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    readable_ = false;
    if (errno != EAGAIN && errno != EWOULDBLOCK) close();
    return false;
  }
  if (count == 0) {
    input_closed_ = true;
    return true;
  }
  const auto bytes = static_cast<size_t>(count);
  read_budget_ -= std::min(bytes, read_budget_);
  progress_at_ = io_.clock.now();
  if (phase_ == Phase::kHead && input_.empty()) phase_began_at_ = progress_at_;
  input_.add(std::string_view(io_.read_buffer.data(), bytes));
  return true;
}

bool Connection::end_of_input() {
  if (phase_ == Phase::kLingering || (phase_ == Phase::kHead && input_.empty())) {
    close();
  } else {
    const bool in_head = phase_ == Phase::kHead;
    refuse({ErrorKind::kParse, in_head ? "the request ends within its head" : "the request ends within its body"});
  }
  return true;
}

bool Connection::take_head() {
  while (input_.view().starts_with("\r\n")) {  // RFC 9112: empty lines before a request are no request
    input_.consume(2);
    scanner_.reset();
  }
  const auto end = scanner_.scan(input_.view());
  if (!end) {
    refuse(end.error());
    return true;
  }
  if (!*end) return false;
  ParsedHead parsed = parse_head(input_.view().substr(0, **end));
  input_.consume(**end);
  scanner_.reset();
  begin_request(std::move(parsed));
  return true;
}

void Connection::begin_request(ParsedHead parsed) {
  head_ = std::move(parsed.head);
  request_id_ = head_.request_id();
  if (parsed.error) return refuse(*std::move(parsed.error));
  close_after_answer_ = !head_.keep_alive;
  body_remaining_ = head_.body.content_length;
  chunked_ = ChunkedDecoder(limits_.body_bytes_max);
  body_complete_ = !head_.body.has_body();
  phase_ = Phase::kBody;
  exchange_ = dispatcher_.open({head_, *request_id_, peer_, io_, *this});
  if (response_) return;
  KCORAL_CHECK(exchange_ != nullptr);
  if (body_complete_) return end_body();
  if (head_.expects_continue && input_.empty()) output_.add(kContinue);
}

void Connection::end_body() {
  body_complete_ = true;
  phase_ = Phase::kWaiting;
  exchange_->on_body_end();
}

bool Connection::take_body() {
  if (input_.empty()) return false;
  return head_.body.chunked ? take_chunked_body() : take_sized_body();
}

bool Connection::take_sized_body() {
  const std::string_view piece = input_.view().substr(0, body_remaining_);
  body_remaining_ -= piece.size();
  body_complete_ = body_remaining_ == 0;
  exchange_->on_body(piece);
  input_.consume(piece.size());
  if (body_complete_ && !response_) end_body();
  return true;
}

bool Connection::take_chunked_body() {
  std::string_view rest = input_.view();
  const size_t before = rest.size();
  const auto decoded = chunked_.next(rest);
  if (!decoded) {
    refuse(decoded.error());
    return true;
  }
  if (decoded->kind == ChunkedDecoder::Step::Kind::kData) exchange_->on_body(decoded->data);
  input_.consume(before - rest.size());
  if (decoded->kind == ChunkedDecoder::Step::Kind::kEnd) end_body();
  return true;
}

/// Answers an error after which nobody can say where the next request begins.
void Connection::refuse(Error error) {
  if (!request_id_) request_id_ = fresh_request_id();
  body_complete_ = false;
  phase_ = Phase::kBody;
  response_ = error_response(*request_id_, error);
}

// --- answering ---

void Connection::begin_answer() {
  Response response = std::move(*response_);
  response_.reset();
  exchange_.reset();
  if (!body_complete_ || response.close || stopping_) close_after_answer_ = true;
  output_.add(answer_head(response, close_after_answer_));
  if (head_.method != "HEAD") output_.add_body(std::move(response.body), response.body_owner);
  phase_ = Phase::kSending;
  progress_at_ = io_.clock.now();
}

std::string Connection::answer_head(const Response& response, bool close) const {
  std::string head;
  head.reserve(512);
  const auto out = std::back_inserter(head);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Request-ID: {}\r\n",
                 response.http_status, reason_phrase(response.http_status), http_date(io_.clock.wall_now()),
                 response.content_type, response.body_bytes(), response.request_id.str());
  for (const Header& header : response.headers) fmt::format_to(out, "{}: {}\r\n", header.name, header.value);
  if (close) {
    head += "Connection: close\r\n";
  } else if (head_.version == HttpVersion::k10) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

/// True once nothing is left to send. Otherwise an event, a later round or nobody at all goes on.
bool Connection::flush_output() {
  if (!writable_) return false;
  size_t sent = 0;
  const auto progress = output_.flush(fd_, write_budget_, sent);
  write_budget_ -= std::min(sent, write_budget_);
  if (sent > 0) progress_at_ = io_.clock.now();
  switch (progress) {
    case OutputQueue::Progress::kDone:
      return true;
    case OutputQueue::Progress::kBlocked:
      writable_ = false;
      return false;
    case OutputQueue::Progress::kPaused:
      continue_later();
      return false;
    case OutputQueue::Progress::kBroken:
      close();
      return false;
  }
  return false;
}

void Connection::end_answer() {
  failpoint("gateway.answer.sent");
  if (close_after_answer_) return begin_lingering();
  head_ = RequestHead();
  request_id_.reset();
  probe_at_.reset();
  phase_ = Phase::kHead;
  phase_began_at_ = progress_at_;
}

void Connection::begin_lingering() {
  if (input_closed_) return close();
  ::shutdown(fd_, SHUT_WR);
  phase_ = Phase::kLingering;
  phase_began_at_ = progress_at_ = io_.clock.now();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  exchange_.reset();
  response_.reset();
  input_.clear();
  output_ = OutputQueue();
  io_.close_later(fd_);
}

// --- time ---

std::optional<SteadyTime> Connection::deadline() const {
  switch (phase_) {
    case Phase::kHead:
      return input_.empty() ? progress_at_ + limits_.idle : phase_began_at_ + limits_.head;
    case Phase::kBody:
    case Phase::kSending:
      return progress_at_ + limits_.stall;
    case Phase::kLingering:
      return std::min(progress_at_ + limits_.linger_silence, phase_began_at_ + limits_.linger_total);
    case Phase::kWaiting:
      return probe_at_;
    case Phase::kClosed:
      return std::nullopt;
  }
  return std::nullopt;
}

/// Deadlines move with every byte; the timer does not: it looks again when it rings too early.
void Connection::arm_timer() {
  const auto due = deadline();
  if (!due || (timer_ && timer_at_ <= *due)) return;
  if (timer_) io_.timers.cancel(*timer_);
  timer_at_ = *due;
  timer_ = io_.timers.add(timer_at_, [this] { on_timer(); });  // cancelled by the destructor
}

void Connection::on_timer() {
  timer_.reset();
  const auto due = deadline();
  if (due && *due <= io_.clock.now()) on_deadline();
  arm_timer();
}

void Connection::on_deadline() {
  if (phase_ == Phase::kWaiting) return probe();
  const bool in_request = phase_ == Phase::kBody || (phase_ == Phase::kHead && !input_.empty());
  if (!in_request || !output_.empty()) return close();
  refuse({ErrorKind::kParse, phase_ == Phase::kHead ? "the request's head did not arrive in time"
                                                    : "the request's body stopped arriving"});
  pump();
}

}  // namespace kcoral::gateway
