// Changes in memory that follow rows: undone when the transaction around those is.
//
// Belongs to the writer's thread.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace kcoral::store {

class UndoLog {
 public:
  /// `undo` takes back what was just changed.
  void add(std::function<void()> undo) { undos_.push_back(std::move(undo)); }

  size_t size() const { return undos_.size(); }
  /// Takes back, the last first, what was changed since the last commit.
  void undo() {
    while (!undos_.empty()) {
      undos_.back()();
      undos_.pop_back();
    }
  }
  /// The rows are committed.
  void forget() { undos_.clear(); }

 private:
  std::vector<std::function<void()>> undos_;
};

}  // namespace kcoral::store
