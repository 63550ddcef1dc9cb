// GET /requests and everything below /requests/{id}: reads what the path and the query of a call say, and makes the
// exchange that answers it.
//
// A query parameter that is not known, stands there twice or has a value that is not accepted is kParse; an id that is
// no canonical lowercase UUID names no request, and is kNotFound. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gateway/abandonment.h"
#include "gateway/connection.h"
#include "gateway/routes.h"
#include "gateway/waiting_clients.h"
#include "store/store.h"

namespace kcoral::gateway {

class RequestService {
 public:
  RequestService(store::Store& store, WaitingClients& waiting, Abandonment& abandonment)
      : store_(store), waiting_(waiting), abandonment_(abandonment) {}

  /// Requires: an endpoint of GET /requests or below /requests/{id}, with the parameters of its path.
  Result<std::shared_ptr<Exchange>> open(const Routes::Match& match, const Call& call);

 private:
  using Opened = Result<std::shared_ptr<Exchange>>;

  Opened open_history(const Call& call);
  Opened open_status(const Uuid& request_id, const Call& call);
  Opened open_output(const Uuid& request_id, const Call& call);
  /// Those without query parameters.
  Opened open_plain(Endpoint endpoint, const Uuid& request_id, const Call& call);
  Opened open_artifact(const Uuid& request_id, std::string_view encoded_key, const Call& call);
  template <typename Kind, typename... Arguments>
  std::shared_ptr<Exchange> make(const Call& call, Arguments&&... arguments) {
    return std::make_shared<Kind>(store_, waiting_, call, std::forward<Arguments>(arguments)...);
  }

  store::Store& store_;
  WaitingClients& waiting_;
  Abandonment& abandonment_;
};

}  // namespace kcoral::gateway
