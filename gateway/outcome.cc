#include "gateway/outcome.h"

#include "gateway/status_document.h"
#include "gateway/tar.h"
#include "schema/returned_value.h"

namespace kcoral::gateway {
namespace {

std::vector<schema::Answer::Segment> tar_of(schema::ReturnedFolder folder, WallTime modified_at) {
  TarWriter tar(modified_at);
  for (const std::string& path : folder.directories) tar.add_directory(path);
  for (auto& [path, content] : folder.files) tar.add_file(path, std::move(content));
  return std::move(tar).finish();
}

}  // namespace

void OutcomeExchange::on_body_end() { store().status(request_id_, posted(&OutcomeExchange::on_status)); }

void OutcomeExchange::on_status(Result<store::RequestStatus> status) {
  if (!status) return answer(status.error());
  if (!schema::is_terminal(status->state)) return respond(status_response(call_id(), *status, 409));
  status_ = *std::move(status);
  await_answer(request_id_, &OutcomeExchange::on_answer);
}

void OutcomeExchange::on_answer(Result<AnswerPtr> outcome) {
  if (!outcome) return answer(outcome.error());
  auto response = render_(call_id(), status_, *std::move(outcome));
  if (!response) return answer(response.error());
  respond(*std::move(response));
}

Result<Response> render_result(const Uuid& call_id, const store::RequestStatus&,
                               std::shared_ptr<const schema::Answer> answer) {
  return answer_response(call_id, std::move(answer));
}

Result<Response> render_artifact(const Uuid& call_id, const store::RequestStatus& status,
                                 std::shared_ptr<const schema::Answer> answer, std::string_view key) {
  auto found = schema::find_returned(*answer, key);
  if (!found) return fail(found.error());
  Response response{.request_id = call_id, .body_owner = std::move(answer)};
  if (auto* content = std::get_if<schema::Extent>(&*found)) {
    response.content_type = "application/octet-stream";
    response.body.emplace_back(std::move(*content));
  } else if (auto* folder = std::get_if<schema::ReturnedFolder>(&*found)) {
    response.content_type = "application/x-tar";
    response.body = tar_of(std::move(*folder), status.finished_at.value_or(WallTime()));
  } else {
    response.body.emplace_back(std::get<std::string_view>(*found));
  }
  return response;
}

}  // namespace kcoral::gateway
