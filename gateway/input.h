// What a connection has read and not yet consumed. As a rule that is a view of its thread's read buffer; only what is
// left when the thread turns to another connection is copied. Not thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace kcoral::gateway {

class Input {
 public:
  std::string_view view() const { return kept_.empty() ? borrowed_ : std::string_view(kept_).substr(offset_); }
  bool empty() const { return view().empty(); }

  /// Appends `bytes`, which are only borrowed where possible: they must stay until `keep`.
  /// Requires: `keep` was called after the last `add`.
  void add(std::string_view bytes) {
    if (kept_.empty()) {
      borrowed_ = bytes;
      return;
    }
    kept_.erase(0, std::exchange(offset_, 0));
    kept_.append(bytes);
  }

  /// Requires: at most `view().size()`.
  void consume(size_t bytes) {
    if (kept_.empty()) {
      borrowed_.remove_prefix(bytes);
      return;
    }
    offset_ += bytes;
    if (offset_ == kept_.size()) clear();
  }

  /// Copies what is borrowed.
  void keep() {
    if (borrowed_.empty()) return;
    kept_.assign(borrowed_);
    offset_ = 0;
    borrowed_ = {};
  }

  void clear() {
    kept_ = std::string();  // gives the memory back: most connections are idle
    offset_ = 0;
    borrowed_ = {};
  }

 private:
  std::string kept_;
  size_t offset_ = 0;
  std::string_view borrowed_;
};

}  // namespace kcoral::gateway
