// Makes backups for whoever asks over the control socket, on a thread of its own.
//
// It promises: one backup at a time, and who asks for another meanwhile is told so; a backup whose client has hung up
// is given up, and so is one that is under way when the server ends, whose client is told.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/unique_fd.h"
#include "server/control_socket.h"
#include "store/store.h"

namespace kcoral::server {

class BackupService {
 public:
  /// Requires: the store has recovered, and outlives the service.
  static Result<std::unique_ptr<BackupService>> start(store::Store& store, const std::string& data_dir);
  ~BackupService();

 private:
  BackupService(store::Store& store, UniqueFd listener, UniqueFd closing)
      : store_(store), listener_(std::move(listener)), closing_fd_(std::move(closing)) {}
  void run();
  void serve(ControlConnection client);
  void back_up(ControlConnection& client, const std::string& directory);
  void refuse_others();

  store::Store& store_;
  const UniqueFd listener_;
  const UniqueFd closing_fd_;  // readable from the moment on at which the service is to end
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

}  // namespace kcoral::server
