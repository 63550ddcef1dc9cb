// A question that the store answers once. Lives on its connection's I/O thread.
#pragma once

#include <functional>
#include <utility>

#include "gateway/store_exchange.h"

namespace kcoral::gateway {

template <typename T>
class LookupExchange final : public StoreExchange {
 public:
  using Ask = std::function<void(store::Store& store, std::function<void(Result<T>)> done)>;
  using Render = std::function<Response(const Uuid& call_id, T found)>;

  LookupExchange(store::Store& store_in, WaitingClients& waiting, const Call& call, Ask ask, Render render)
      : StoreExchange(store_in, waiting, call), ask_(std::move(ask)), render_(std::move(render)) {}

  void on_body_end() override { ask_(store(), posted(&LookupExchange::on_found)); }

 private:
  void on_found(Result<T> found) {
    if (!found) return answer(found.error());
    respond(render_(call_id(), std::move(*found)));
  }

  const Ask ask_;
  const Render render_;
};

}  // namespace kcoral::gateway
