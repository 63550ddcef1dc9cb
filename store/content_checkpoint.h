// What the content is at one moment, in a directory beside it.
//
// It promises: a content that is opened on a copy of that directory has all that was written before the checkpoint was
// made; the directory goes with the object.
//
// What it consists of (RocksDB 7.8): links to the content's own table files, to all its logs but the last, and to its
// file of options; copies of the last log and of the manifest, as long as they are at that moment; and a CURRENT of its
// own. To make one takes as long as all that, however large the files are: the log is bounded (content_engine.cc).
// Whoever keeps it may link the table files once more, which nobody ever changes, and copies the rest.
//
// Has one owner. One at a time for each content.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/uuid.h"
#include "store/content.h"

namespace kcoral::store {

class ContentCheckpoint {
 public:
  static Result<std::unique_ptr<ContentCheckpoint>> make(ContentEngine& engine);
  ~ContentCheckpoint();
  ContentCheckpoint(const ContentCheckpoint&) = delete;
  ContentCheckpoint& operator=(const ContentCheckpoint&) = delete;

  const std::string& path() const { return path_; }

  /// Whether several databases may share a file of this name in it: one that is written once.
  static bool is_shareable(std::string_view file_name) { return file_name.ends_with(".sst"); }

  /// Names all artifacts in it; an error of `each` ends that.
  Status for_each_artifact(const std::function<Status(const Uuid& request_id, ContentId id)>& each) const;

 private:
  explicit ContentCheckpoint(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace kcoral::store
