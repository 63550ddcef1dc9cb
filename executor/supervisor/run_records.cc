#include "executor/supervisor/run_records.h"

#include "schema/limits.h"

namespace kcoral::executor {
namespace {

using nlohmann::json;

// Of one frame; what is left over is for the frame's own fields. One record is far smaller (ids are bounded).
constexpr size_t kCollectedBytesMax = limits::kFrameBytesMax - 4 * limits::kKiB;

}  // namespace

RunRecords::RunRecords(EventLoop& loop, const RunId& run, Send send) : loop_(loop), run_(run), send_(std::move(send)) {}

RunRecords::~RunRecords() {
  if (timer_) loop_.cancel(*timer_);
}

void RunRecords::add(const nlohmann::ordered_json& record) {
  const std::string object = record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  json entry{{"at_us", loop_.clock().wall_now().time_since_epoch().count()},
             {"members", object.substr(1, object.size() - 2)}};
  const size_t entry_bytes = entry.dump().size() + 1;
  if (collected_bytes_ + entry_bytes > kCollectedBytesMax) flush();
  collected_.push_back(std::move(entry));
  collected_bytes_ += entry_bytes;
  if (!timer_) {
    timer_ = loop_.run_after(limits::kRecordsDelayExecutor, [this] {
      timer_.reset();
      flush();
    });
  }
}

void RunRecords::flush() {
  if (timer_) {
    loop_.cancel(*timer_);
    timer_.reset();
  }
  if (collected_.empty()) return;
  json frame = frame_about(run_, "records");
  frame["records"] = std::move(collected_);
  send_(frame);
  collected_ = json::array();
  collected_bytes_ = 0;
}

}  // namespace kcoral::executor
