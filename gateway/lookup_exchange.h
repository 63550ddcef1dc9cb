// A question that the store answers once. Lives on its connection's I/O thread; what was found is made into an answer
// on the store's, since a page of history takes milliseconds that others on the I/O thread would wait for.
#pragma once

#include <functional>
#include <utility>

#include "gateway/store_exchange.h"

namespace kcoral::gateway {

template <typename T>
class LookupExchange final : public StoreExchange {
 public:
  using Ask = std::function<void(store::Store& store, std::function<void(Result<T>)> done)>;
  /// Thread-safe.
  using Render = std::function<Response(const Uuid& call_id, T found)>;

  LookupExchange(store::Store& store_in, WaitingClients& waiting, const Call& call, Ask ask, Render render)
      : StoreExchange(store_in, waiting, call), ask_(std::move(ask)), render_(std::move(render)) {}

  void on_body_end() override {
    ask_(store(), [render = render_, id = call_id(), done = posted(&LookupExchange::on_rendered)](Result<T> found) {
      if (!found) return done(fail(found.error()));
      done(render(id, std::move(*found)));
    });
  }

 private:
  void on_rendered(Result<Response> response) {
    if (!response) return answer(response.error());
    respond(*std::move(response));
  }

  const Ask ask_;
  const Render render_;
};

}  // namespace kcoral::gateway
