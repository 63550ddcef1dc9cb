// The status document (contract section 9). Pure functions.
//
// Its fields stand in the contract's order. `started_at`, `finished_at`, `queue_position`, `executor` and `error` are
// null while there is nothing to say; the four times are left out until they are known. `links` are paths on this
// server, those of the returned values by key.
#pragma once

#include <string>

#include "gateway/http_types.h"
#include "store/store.h"

namespace kcoral::gateway {

std::string status_document(const store::RequestStatus& status);

std::string path_of_request(const Uuid& request_id);

Response status_response(const Uuid& call_id, const store::RequestStatus& status, int http_status = 200);

}  // namespace kcoral::gateway
