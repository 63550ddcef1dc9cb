#include "store/content_checkpoint.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "store/content_engine.h"
#include "store/content_keys.h"

namespace kcoral::store {
namespace {

constexpr int kOpenFilesMax = 64;

}  // namespace

Result<std::unique_ptr<ContentCheckpoint>> ContentCheckpoint::make(ContentEngine& engine) {
  // Before it is made: what is there of one that fails goes too.
  std::unique_ptr<ContentCheckpoint> checkpoint(new ContentCheckpoint(engine.checkpoint_path()));
  if (auto made = engine.checkpoint(checkpoint->path()); !made) return fail(made.error());
  return checkpoint;
}

ContentCheckpoint::~ContentCheckpoint() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) spdlog::warn("{} is left behind until the next start: {}", path_, error.message());
}

Status ContentCheckpoint::for_each_artifact(
    const std::function<Status(const Uuid& request_id, ContentId id)>& each) const {
  constexpr std::string_view kWhat = "reading a checkpoint of the content";
  rocksdb::DBOptions options;
  options.info_log = server_log();
  options.max_open_files = kOpenFilesMax;
  const std::vector<rocksdb::ColumnFamilyDescriptor> families = {
      {kFamilyNames[kDefault], rocksdb::ColumnFamilyOptions()},
      {kFamilyNames[kArtifacts], rocksdb::ColumnFamilyOptions()},
  };
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  if (auto status = rocksdb::DB::OpenForReadOnly(options, path_, families, &handles, &opened); !status.ok()) {
    return failure(status, kWhat);
  }
  const std::unique_ptr<rocksdb::DB> db(opened);
  Status done;
  {
    const std::unique_ptr<rocksdb::Iterator> names(db->NewIterator(rocksdb::ReadOptions(), handles[1]));
    for (names->SeekToFirst(); done && names->Valid(); names->Next()) {
      const auto name = artifact_of(view(names->key()));
      if (name) done = each(name->request_id, name->id);
    }
    if (done && !names->status().ok()) done = failure(names->status(), kWhat);
  }
  for (rocksdb::ColumnFamilyHandle* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
  return done;
}

}  // namespace kcoral::store
