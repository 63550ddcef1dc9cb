#include "store/backup.h"
#include "store/durable_store.h"

namespace kcoral::store {

Result<BackupSummary> DurableStore::back_up(const std::string& directory, const BackupProgress& progress) {
  const InFlight::Token token = in_flight_.enter();
  if (!token) return fail(closed());
  return store::back_up({data_dir_.path(), data_dir_.database_path(), *content_}, directory, progress);
}

}  // namespace kcoral::store
