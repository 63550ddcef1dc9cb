#include <utility>

#include "store/store.h"

namespace kcoral::store {

Completion completion_with_error(const Uuid& request_id, schema::State state, const Error& error, std::string reason) {
  Completion completion;
  completion.state = state;
  completion.answer = std::make_shared<const schema::Answer>(schema::make_error_answer(request_id, error));
  completion.reason = std::move(reason);
  completion.error_kind = info(error.kind).wire_name;
  completion.error_message = error.message;
  return completion;
}

}  // namespace kcoral::store
