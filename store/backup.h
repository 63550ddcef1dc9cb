// A copy of a data directory whose server goes on.
//
// It promises: the copy has what was committed at one moment, and all content that its rows refer to; a server that
// starts from it does what it would have done after kill -9 at that moment; there is nothing under the copy's name
// before all of it is on the disk; and neither the writer nor whoever asks waits while it is made.
//
// Theory of operation. Rows first, then content: whatever a row refers to was durable before the row was committed, so
// content that is looked at after the rows has it, unless it was removed in between. So removals are held off, and the
// audit with them (below), from before the snapshot of the rows (sqlite_snapshot.h) until there is a checkpoint of the
// content, which is there at once (content_checkpoint.h says of what). From then on both stand still by themselves, and
// are copied as slowly as the disk wants, but for the checkpoint's table files, which are linked where that is
// possible. Rows come first, since their snapshot keeps the write-ahead log from being emptied. The writer's first
// checkpoint after that moves all that was written meanwhile into the database, and commits wait for it.
//
// What came between the two: audit records of what the snapshot's rows do not know would be taken for the next ones
// that bear their numbers, so none is copied meanwhile (they wait in the outbox). An answer that was stored and is in
// no row is written down in the copy among what is doomed, and goes when that is pruned first. Blobs are known by their
// digests, whoever needs them. What was half written has a mark, as after a crash.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "store/content.h"
#include "store/store.h"

namespace kcoral::store {

struct BackupSource {
  std::string data_dir;
  std::string database_path;
  Content& content;
};

/// As Store::back_up does it.
Result<BackupSummary> back_up(const BackupSource& source, const std::string& directory, const BackupProgress& progress);

/// Removes what a server that was killed has left of a backup to `directory`. False while one is at work on it.
bool remove_incomplete_backup(const std::string& directory);

}  // namespace kcoral::store
