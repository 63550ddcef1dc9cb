#include "gateway/submission_exchange.h"

#include "base/failpoint.h"
#include "gateway/enqueue.h"
#include "gateway/execute.h"
#include "schema/json_reader.h"

namespace kcoral::gateway {
namespace {

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

Result<SubmissionExchange::Sender> read_sender(const Call& call, const std::shared_ptr<BodyBudget>& budget) {
  auto client = client_name(call.head, call.peer);
  if (!client) return fail(client.error());
  if (auto room = budget->check_room(call.head.body.content_length); !room) return fail(room.error());
  auto reader = SubmissionReader::create(call.head.sole("content-type").value_or(""), budget);
  if (!reader) return fail(reader.error());
  return SubmissionExchange::Sender{std::move(*client), fmt::format("{}:{}", call.peer.host, call.peer.port),
                                    std::move(*reader)};
}

}  // namespace

// Whoever sends a program, all of it or not yet, is about to wait for its request or to make it one that is polled.
SubmissionExchange::SubmissionExchange(SubmissionService& service, const Call& call, Sender sender, Terms terms)
    : StoreExchange(service.store_, service.waiting_, call),
      service_(service),
      sender_(std::move(sender)),
      terms_(terms) {
  service_.abandonment_.arrive(call_id());
}

SubmissionExchange::~SubmissionExchange() {
  if (terms_.is_synchronous && is_submitted_ && !is_answered()) {
    service_.abandonment_.leave_unanswered(call_id(), io());
  } else {
    service_.abandonment_.leave(call_id(), io().clock.now());
  }
}

void SubmissionExchange::on_body(std::string_view bytes) {
  const auto fed = sender_.reader->feed(bytes);
  if (fed) return;
  sender_.reader.reset();
  Response refusal = error_response(call_id(), fed.error());
  refusal.close = fed.error().kind == ErrorKind::kBusy;
  respond(std::move(refusal));
}

void SubmissionExchange::on_body_end() {
  failpoint("gateway.body.received");
  auto received = sender_.reader->finish(service_.config().bounds);
  sender_.reader.reset();
  if (!received) return answer(received.error());
  if (auto admits = service_.check_admits(); !admits) return answer(admits.error());
  admit(std::move(*received));
}

void SubmissionExchange::admit(ReceivedProgram received) {
  store::Submission submission;
  submission.request_id = call_id();
  submission.client = sender_.client;
  submission.peer = sender_.peer;
  submission.synchronous = terms_.is_synchronous;
  submission.max_attempts = received.program.options.max_attempts.value_or(terms_.attempts_default);
  submission.program_text = std::move(received.text);
  submission.program_sha256 = received.sha256;
  submission.program = std::move(received.program);
  submission.staged = std::move(received.staged);
  is_submitted_ = true;
  // The share stays with the admission, not with the client: what the store has not taken over yet is still in memory.
  store().admit(std::move(submission), [share = std::shared_ptr(std::move(received.share)),
                                        done = posted(&SubmissionExchange::on_admission)](auto admission) {
    share->release();
    done(std::move(admission));
  });
}

void SubmissionExchange::on_admission(Result<store::Admission> admission) {
  if (!admission) return answer(admission.error());
  if (admission->kind == store::Admission::Kind::kCacheMiss) {
    return respond(answer_response(call_id(), std::make_shared<const schema::Answer>(
                                                  schema::make_cache_miss_answer(call_id(), admission->missing))));
  }
  on_admitted(std::move(*admission));
}

template <typename Kind>
Result<std::shared_ptr<Exchange>> SubmissionService::open(const Call& call) {
  if (auto admits = check_admits(); !admits) return fail(admits.error());
  auto sender = read_sender(call, budget_);
  if (!sender) return fail(sender.error());
  return std::make_shared<Kind>(*this, call, std::move(*sender));
}

Result<std::shared_ptr<Exchange>> SubmissionService::open_execute(const Call& call) {
  return open<ExecuteExchange>(call);
}
Result<std::shared_ptr<Exchange>> SubmissionService::open_enqueue(const Call& call) {
  return open<EnqueueExchange>(call);
}

void SubmissionService::stop_admitting() {
  const MutexLock lock(mutex_);
  admits_ = false;
}

Status SubmissionService::check_admits() const {
  const MutexLock lock(mutex_);
  if (admits_) return {};
  return fail(ErrorKind::kBusy, "the server is stopping and takes no new programs");
}

}  // namespace kcoral::gateway
