// The members of the audit records that the store itself writes: contract section 9.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "schema/state.h"
#include "store/store.h"

namespace kcoral::store::audit_events {

std::string admitted(const Submission& submission, uint64_t blob_bytes);
std::string queued();
std::string assigned(const ExecutorRef& executor, int attempt);
std::string running(int pid, int attempt);
/// Records of single instructions may be missing here, since the run was lost for `reason`.
std::string gap(std::string_view reason);
std::string requeued(std::string_view reason);
std::string cancel_requested(CancelBy by);
std::string finished(schema::State state, std::string_view reason);

}  // namespace kcoral::store::audit_events
