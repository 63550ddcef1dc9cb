// The audit records of one run on their way to the server: collected, and sent a few times a second instead of one by
// one. Belongs to its loop's thread.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/event_loop.h"
#include "executor/run_id.h"

namespace kcoral::executor {

class RunRecords {
 public:
  using Send = std::function<void(const nlohmann::json& frame)>;

  RunRecords(EventLoop& loop, const RunId& run, Send send);
  ~RunRecords();
  RunRecords(const RunRecords&) = delete;
  RunRecords& operator=(const RunRecords&) = delete;

  /// `record`: an object with "event" and its fields. Stamped now, sent within
  /// limits::kRecordsDelayExecutor.
  void add(const nlohmann::ordered_json& record);
  /// Sends what was collected, now.
  void flush();

 private:
  EventLoop& loop_;
  RunId run_;
  Send send_;
  nlohmann::json collected_ = nlohmann::json::array();
  size_t collected_bytes_ = 0;
  std::optional<EventLoop::TimerId> timer_;
};

}  // namespace kcoral::executor
