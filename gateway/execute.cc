#include "gateway/execute.h"

#include "gateway/submission.h"
#include "schema/json_reader.h"

namespace kcoral::gateway {
namespace {

constexpr int kRetryAfterSeconds = 5;

Error not_admitting() { return {ErrorKind::kBusy, "the server is stopping and takes no new programs"}; }

Response error_answer(const Uuid& request_id, const Error& error) {
  return error_response(request_id, error, info(error.kind).retry_later ? kRetryAfterSeconds : 0);
}

/// The client's name for history and fairness; its address by default.
Result<std::string> client_name(const RequestHead& head, const PeerAddress& peer) {
  if (head.count("x-kcoral-client") > 1) return fail(ErrorKind::kParse, "X-KCoral-Client was sent more than once");
  const auto name = head.sole("x-kcoral-client");
  if (!name || name->empty()) return peer.host;
  if (name->size() > limits::kClientNameBytesMax || !schema::is_valid_utf8(*name)) {
    return fail(ErrorKind::kParse, "X-KCoral-Client must be UTF-8 of at most {} bytes", limits::kClientNameBytesMax);
  }
  return std::string(*name);
}

}  // namespace

class ExecuteExchange final : public Exchange, public std::enable_shared_from_this<ExecuteExchange> {
 public:
  ExecuteExchange(ExecuteService& service, const Uuid& request_id, std::string client, const PeerAddress& peer,
                  std::unique_ptr<SubmissionReader> reader, IoThread& io, ResponseSink& sink)
      : service_(service),
        request_id_(request_id),
        client_(std::move(client)),
        peer_(fmt::format("{}:{}", peer.host, peer.port)),
        reader_(std::move(reader)),
        io_(io),
        sink_(sink) {}

  ~ExecuteExchange() override { stop_waiting(); }

  void on_body(std::string_view bytes) override {
    const auto fed = reader_->feed(bytes);
    if (fed) return;
    reader_.reset();
    Response refusal = error_answer(request_id_, fed.error());
    refusal.close = fed.error().kind == ErrorKind::kBusy;
    respond(std::move(refusal));
  }

  void on_body_end() override {
    auto received = reader_->finish(service_.config_.bounds);
    reader_.reset();
    if (!received) return answer(received.error());
    if (!service_.admits()) return answer(not_admitting());
    admit(std::move(*received));
  }

  /// The server stops; the request stays.
  void release() {
    answer({ErrorKind::kBusy,
            "the server is stopping before this request has an outcome; the request is kept and can be asked for again "
            "with the same X-Request-ID and the same program"});
  }

 private:
  void admit(ReceivedProgram received);
  void on_admission(Result<store::Admission> admission);
  void begin_waiting();
  void on_outcome(Result<store::Store::AnswerPtr> outcome);
  void on_worker_wait_passed();
  void stop_waiting();

  void answer(const Error& error) { respond(error_answer(request_id_, error)); }
  void answer(store::Store::AnswerPtr outcome) { respond({request_id_, std::move(outcome), {}}); }
  void respond(Response response) {
    if (answered_) return;
    answered_ = true;
    stop_waiting();
    sink_.respond(std::move(response));
  }

  /// A callback for the store's threads that runs `method` on the I/O thread, if the exchange is still there by then.
  template <typename T>
  std::function<void(T)> posted(void (ExecuteExchange::*method)(T)) {
    return [weak = weak_from_this(), mailbox = io_.mailbox, method](T value) {
      // Letters are copyable functions, so the value travels behind a pointer.
      mailbox->post([weak, method, shared = std::make_shared<T>(std::move(value))] {
        if (const auto self = weak.lock()) (self.get()->*method)(std::move(*shared));
      });
    };
  }

  ExecuteService& service_;
  const Uuid request_id_;
  const std::string client_;
  const std::string peer_;
  std::unique_ptr<SubmissionReader> reader_;  // until the body is complete
  IoThread& io_;
  ResponseSink& sink_;

  bool answered_ = false;
  bool registered_ = false;
  std::optional<store::Store::WatchId> watch_;
  std::optional<TimerQueue::Id> worker_wait_timer_;
};

void ExecuteExchange::admit(ReceivedProgram received) {
  store::Submission submission;
  submission.request_id = request_id_;
  submission.client = client_;
  submission.peer = peer_;
  submission.synchronous = true;
  submission.max_attempts = received.program.options.max_attempts.value_or(limits::kAttemptsDefaultExecute);
  submission.program_text = std::move(received.text);
  submission.program_sha256 = received.sha256;
  submission.program = std::move(received.program);
  submission.staged = std::move(received.staged);
  // The share stays with the admission, not with the client: what the store has not taken over yet is still in memory.
  service_.store_.admit(std::move(submission), [share = std::shared_ptr(std::move(received.share)),
                                                done = posted(&ExecuteExchange::on_admission)](auto admission) {
    share->release();
    done(std::move(admission));
  });
}

void ExecuteExchange::on_admission(Result<store::Admission> admission) {
  if (!admission) return answer(admission.error());
  if (admission->kind == store::Admission::Kind::kCacheMiss) {
    return answer(
        std::make_shared<const schema::Answer>(schema::make_cache_miss_answer(request_id_, admission->missing)));
  }
  begin_waiting();
}

void ExecuteExchange::begin_waiting() {
  registered_ = service_.register_waiting(shared_from_this(), io_.mailbox);
  if (!registered_) return release();
  worker_wait_timer_ =
      io_.timers.add(io_.clock.now() + service_.config_.worker_wait, [this] { on_worker_wait_passed(); });
  watch_ = service_.store_.watch(request_id_, posted(&ExecuteExchange::on_outcome));
}

void ExecuteExchange::on_outcome(Result<store::Store::AnswerPtr> outcome) {
  watch_.reset();  // it has said what it had to say
  if (!outcome) return answer(outcome.error());
  answer(std::move(*outcome));
}

void ExecuteExchange::on_worker_wait_passed() {
  worker_wait_timer_.reset();
  const std::chrono::duration<double> waited = service_.config_.worker_wait;
  Error busy{ErrorKind::kBusy,
             fmt::format("no worker became free within {} seconds; nothing ran. Send the program again "
                         "under a fresh X-Request-ID",
                         waited.count())};
  auto rejection =
      std::make_shared<const schema::Answer>(schema::make_error_answer(request_id_, busy, kRetryAfterSeconds));
  service_.store_.reject_if_queued(request_id_, std::move(rejection), "the wait for a worker passed its limit");
}

void ExecuteExchange::stop_waiting() {
  if (worker_wait_timer_) io_.timers.cancel(*std::exchange(worker_wait_timer_, std::nullopt));
  if (registered_) service_.unregister_waiting(this);
  registered_ = false;
  // Waits for a callback that is running; that one only posts, and no lock of ours is held here.
  if (watch_) service_.store_.unwatch(*std::exchange(watch_, std::nullopt));
}

std::shared_ptr<Exchange> ExecuteService::open(const RequestHead& head, const Uuid& request_id, const PeerAddress& peer,
                                               IoThread& io, ResponseSink& sink) {
  const auto refuse = [&](const Error& error) {
    sink.respond(error_answer(request_id, error));
    return nullptr;
  };
  if (!admits()) return refuse(not_admitting());
  auto client = client_name(head, peer);
  if (!client) return refuse(client.error());
  if (auto room = budget_->check_room(head.body.content_length); !room) return refuse(room.error());
  auto reader = SubmissionReader::create(head.sole("content-type").value_or(""), budget_);
  if (!reader) return refuse(reader.error());
  return std::make_shared<ExecuteExchange>(*this, request_id, std::move(*client), peer, std::move(*reader), io, sink);
}

void ExecuteService::stop_admitting() {
  const MutexLock lock(mutex_);
  admits_ = false;
}

bool ExecuteService::admits() const {
  const MutexLock lock(mutex_);
  return admits_;
}

void ExecuteService::release_waiting() {
  std::unordered_map<const ExecuteExchange*, Waiting> waiting;
  {
    const MutexLock lock(mutex_);
    releasing_ = true;
    waiting = waiting_;
  }
  for (auto& [address, each] : waiting) {
    each.mailbox->post([weak = each.exchange] {
      if (const auto exchange = weak.lock()) exchange->release();
    });
  }
}

bool ExecuteService::register_waiting(const std::shared_ptr<ExecuteExchange>& exchange,
                                      std::shared_ptr<Mailbox> mailbox) {
  const MutexLock lock(mutex_);
  if (releasing_) return false;
  waiting_.emplace(exchange.get(), Waiting{exchange, std::move(mailbox)});
  return true;
}

void ExecuteService::unregister_waiting(const ExecuteExchange* exchange) {
  const MutexLock lock(mutex_);
  waiting_.erase(exchange);
}

}  // namespace kcoral::gateway
