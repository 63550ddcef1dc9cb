// The clients that wait for a request to end, so that they can be told when the server stops.
//
// It promises: whoever has entered, and has not left, is released once; nobody enters after that. Thread-safe.
#pragma once

#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "gateway/io_thread.h"

namespace kcoral::gateway {

class WaitingClient {
 public:
  virtual ~WaitingClient() = default;
  /// The server stops: answer now. Called on the client's I/O thread.
  virtual void release() = 0;
};

class WaitingClients {
 public:
  /// False if clients are being released: then the client must answer by itself.
  bool enter(const std::shared_ptr<WaitingClient>& client, std::shared_ptr<Mailbox> mailbox);
  /// One that is not here is ignored.
  void leave(const WaitingClient* client);
  void release();

 private:
  struct Waiting {
    std::weak_ptr<WaitingClient> client;
    std::shared_ptr<Mailbox> mailbox;
  };

  Mutex mutex_;
  bool releasing_ KCORAL_GUARDED_BY(mutex_) = false;
  std::unordered_map<const WaitingClient*, Waiting> waiting_ KCORAL_GUARDED_BY(mutex_);
};

}  // namespace kcoral::gateway
