#include "store/live_outputs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "schema/json_reader.h"

namespace kcoral::store {
namespace {

Result<std::string> content_of(const UniqueFd& memory) {
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) return fail_errno("fstat", "captured output");
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::pread(memory.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_errno("pread", "captured output");
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

void LiveOutputs::note(const Fence& fence, OutputStream stream, std::shared_ptr<const UniqueFd> memory) {
  const MutexLock lock(mutex_);
  Run& run = runs_[fence.request_id];
  if (run.attempt != fence.attempt) run = {fence.attempt, {}};
  run.memory[stream] = std::move(memory);
}

void LiveOutputs::forget(const Uuid& request_id) {
  const MutexLock lock(mutex_);
  runs_.erase(request_id);
}

bool LiveOutputs::has(const Uuid& request_id) const {
  const MutexLock lock(mutex_);
  return runs_.contains(request_id);
}

LiveOutputs::Run LiveOutputs::run_of(const Uuid& request_id) const {
  const MutexLock lock(mutex_);
  const auto found = runs_.find(request_id);
  return found == runs_.end() ? Run() : found->second;
}

Result<std::string> LiveOutputs::read(const Uuid& request_id, OutputStream stream) const {
  const Run run = run_of(request_id);
  const auto memory = run.memory.find(stream);
  if (memory == run.memory.end()) return std::string();
  auto bytes = content_of(*memory->second);
  if (!bytes) return bytes;
  bytes->resize(bytes->size() - schema::utf8_incomplete_tail(*bytes));
  return schema::utf8_with_replacement(*bytes);
}

Result<CapturedOutput> LiveOutputs::read_all(const Uuid& request_id) const {
  CapturedOutput captured;
  const Run run = run_of(request_id);
  for (const auto& [stream, memory] : run.memory) {
    auto bytes = content_of(*memory);
    if (!bytes) return fail(bytes.error());
    captured[stream] = schema::utf8_with_replacement(*bytes);
  }
  return captured;
}

}  // namespace kcoral::store
