#include "gateway/transport.h"

#include <pthread.h>
#include <signal.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <atomic>
#include <future>

#include "base/mutex.h"
#include "gateway/descriptors.h"
#include "gateway/pistache.h"

namespace kcoral::gateway {
namespace {

constexpr int kBacklog = 1024;

/// What the transport's threads share.
struct Shared {
  Shared(Clock& clock_in, SocketOwnerFactory factory_in, size_t connections_max_in)
      : clock(clock_in), factory(std::move(factory_in)), connections_max(connections_max_in) {}

  Clock& clock;
  const SocketOwnerFactory factory;
  const size_t connections_max;
  std::atomic<bool> refusing{false};

  Mutex mutex;
  ConditionVariable emptied;
  size_t connections KCORAL_GUARDED_BY(mutex) = 0;
  std::vector<class ReactorThread*> threads;        // filled while binding, constant afterwards
  std::vector<std::shared_ptr<Mailbox>> mailboxes;  // of `threads`, and longer-lived

  bool take_place() {
    const MutexLock lock(mutex);
    if (refusing || connections >= connections_max) return false;
    ++connections;
    return true;
  }
  void give_place_back() {
    const MutexLock lock(mutex);
    if (--connections == 0) emptied.notify_all();
  }
};

/// Tells the reactor's thread of each accepted connection. Input never comes this way.
class AcceptedPeers : public Pistache::Tcp::Handler {
  PROTOTYPE_OF(Pistache::Tcp::Handler, AcceptedPeers)

  void onConnection(const std::shared_ptr<Pistache::Tcp::Peer>& peer) override;
  void onInput(const char*, size_t, const std::shared_ptr<Pistache::Tcp::Peer>&) override {}
};

/// One I/O thread's sockets. Pistache makes one by `clone` for each of its reactor threads and calls `onReady` there.
class ReactorThread : public Pistache::Tcp::Transport {
 public:
  ReactorThread(std::shared_ptr<Pistache::Tcp::Handler> handler, std::shared_ptr<Shared> shared)
      : Pistache::Tcp::Transport(handler), handler_(std::move(handler)), shared_(std::move(shared)) {}

  ~ReactorThread() override {
    // Only after the threads have ended: what was accepted in the last moment.
    for (const auto& [fd, peer] : peers) ::close(fd);
  }

  std::shared_ptr<Pistache::Aio::Handler> clone() const override {
    return std::make_shared<ReactorThread>(handler_->clone(), shared_);
  }

  void registerPoller(Pistache::Polling::Epoll& poller) override;
  void onReady(const Pistache::Aio::FdSet& events) override;
  void on_accepted(const std::shared_ptr<Pistache::Tcp::Peer>& peer) { accepted_.push_back(peer); }

  void stop_sockets();
  void close_sockets();

 private:
  void adopt_accepted();
  void close_retired();
  void set_alarm();

  const std::shared_ptr<Pistache::Tcp::Handler> handler_;
  const std::shared_ptr<Shared> shared_;
  std::unique_ptr<IoThread> io_;
  UniqueFd alarm_;
  std::optional<SteadyTime> alarm_at_;
  std::unordered_map<int, std::shared_ptr<SocketOwner>> owners_;
  std::vector<std::shared_ptr<Pistache::Tcp::Peer>> accepted_;
};

void AcceptedPeers::onConnection(const std::shared_ptr<Pistache::Tcp::Peer>& peer) {
  static_cast<ReactorThread*>(transport())->on_accepted(peer);
}

// Pistache does not report errors from here: whatever throws ends `bind`, and with it the start of the server.
void ReactorThread::registerPoller(Pistache::Polling::Epoll& poller) {
  using namespace Pistache::Polling;
  Pistache::Tcp::Transport::registerPoller(poller);
  auto mailbox = Mailbox::create();
  if (!mailbox) throw std::runtime_error(mailbox.error().message);
  alarm_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!alarm_) throw std::runtime_error("timerfd_create failed");
  io_ = std::make_unique<IoThread>(shared_->clock, *mailbox);
  for (const int fd : {io_->mailbox->wakeup_fd(), alarm_.get()}) {
    poller.addFd(fd, Pistache::Flags<NotifyOn>(NotifyOn::Read), Tag(static_cast<uint64_t>(fd)), Mode::Level);
  }
  shared_->threads.push_back(this);
  shared_->mailboxes.push_back(*mailbox);
}

// The order matters. Sockets are closed only after every event of the round was handed out, and new connections are
// taken up only after that: an event of this round can never reach a connection that got a descriptor closed in it.
void ReactorThread::onReady(const Pistache::Aio::FdSet& events) {
  std::vector<Pistache::Polling::Event> pistaches_own;
  bool mail = false;
  for (const auto& event : events) {
    const int fd = static_cast<int>(event.getTag().value());
    if (fd == io_->mailbox->wakeup_fd()) {
      mail = true;
    } else if (fd == alarm_.get()) {
      uint64_t expirations;
      if (::read(fd, &expirations, sizeof(expirations)) > 0) alarm_at_.reset();
    } else if (const auto owner = owners_.find(fd); owner != owners_.end()) {
      owner->second->on_ready(event.isReadable(), event.isWritable(), event.isHangup());
    } else if (peers.find(fd) == peers.end()) {
      Pistache::Polling::Event copy(event.getTag());
      if (event.isReadable()) copy.flags.setFlag(Pistache::Polling::NotifyOn::Read);
      pistaches_own.push_back(copy);
    }
  }
  if (mail) io_->mailbox->deliver();
  io_->timers.run_due(shared_->clock.now());
  close_retired();
  if (!pistaches_own.empty()) {
    Pistache::Tcp::Transport::onReady(Pistache::Aio::FdSet(std::move(pistaches_own)));
    adopt_accepted();
  }
  set_alarm();
}

void ReactorThread::adopt_accepted() {
  using Pistache::Polling::NotifyOn;
  for (const auto& peer : std::exchange(accepted_, {})) {
    if (!shared_->take_place()) {
      removePeer(peer);
      continue;
    }
    const int fd = peer->fd();
    owners_[fd] = shared_->factory(*io_, fd, peer->address().host(), peer->address().port());
    // Asks for everything once; edge-triggered, so that nothing has to be changed ever after. What is there already is
    // reported anew.
    reactor()->modifyFd(key(), fd, NotifyOn::Read | NotifyOn::Write | NotifyOn::Shutdown,
                        Pistache::Polling::Mode::Edge);
  }
}

void ReactorThread::close_retired() {
  for (const int fd : std::exchange(io_->closing, {})) {
    const auto owner = owners_.extract(fd);
    const auto peer = peers.find(fd);
    if (owner.empty() || peer == peers.end()) continue;
    removePeer(std::shared_ptr(peer->second));  // a copy: it erases the entry that it is given
    shared_->give_place_back();
  }
}

void ReactorThread::set_alarm() {
  const auto next = io_->timers.next();
  if (!next || (alarm_at_ && *alarm_at_ <= *next)) return;
  alarm_at_ = *next;
  const auto delay = std::max<std::chrono::nanoseconds>(*next - shared_->clock.now(), std::chrono::microseconds(1));
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(delay);
  itimerspec spec{};
  spec.it_value.tv_sec = seconds.count();
  spec.it_value.tv_nsec = (delay - seconds).count();
  ::timerfd_settime(alarm_.get(), 0, &spec, nullptr);
}

void ReactorThread::stop_sockets() {
  for (const auto& [fd, owner] : owners_) owner->stop();
}

void ReactorThread::close_sockets() {
  for (const auto& [fd, owner] : owners_) io_->close_later(fd);
}

class PistacheTransport final : public Transport {
 public:
  explicit PistacheTransport(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~PistacheTransport() override { stop(std::chrono::milliseconds(0)); }

  Status start(const TransportConfig& config);
  uint16_t port() const override { return port_; }
  void stop(std::chrono::milliseconds flush_wait) override;

 private:
  /// Runs `what` on every I/O thread and waits for it.
  void on_each_thread(const std::function<void(ReactorThread&)>& what);

  const std::shared_ptr<Shared> shared_;
  uint16_t port_ = 0;
  Mutex stop_mutex_;  // held while it starts and while it stops
  std::unique_ptr<Pistache::Tcp::Listener> listener_ KCORAL_GUARDED_BY(stop_mutex_);
};

void PistacheTransport::on_each_thread(const std::function<void(ReactorThread&)>& what) {
  std::vector<std::future<void>> done;
  for (size_t i = 0; i < shared_->threads.size(); ++i) {
    auto promise = std::make_shared<std::promise<void>>();
    done.push_back(promise->get_future());
    shared_->mailboxes[i]->post([&what, thread = shared_->threads[i], promise] {
      what(*thread);
      promise->set_value();
    });
  }
  for (auto& each : done) each.wait();
}

Status PistacheTransport::start(const TransportConfig& config) {
  using Pistache::Tcp::Options;
  auto listener = std::make_unique<Pistache::Tcp::Listener>();
  const auto handler = std::make_shared<AcceptedPeers>();
  const Pistache::Flags<Options> options(Options::ReuseAddr | Options::CloseOnExec | Options::NoDelay);
  listener->init(static_cast<size_t>(config.io_threads), options, "kcoral-io", kBacklog);
  listener->setTransportFactory(
      [handler, shared = shared_] { return std::make_shared<ReactorThread>(handler, shared); });
  listener->setHandler(handler);
  try {
    listener->bind(Pistache::Address(fmt::format("{}:{}", config.address.literal, config.address.port)));
  } catch (const std::exception& error) {
    return fail(ErrorKind::kEnvironment, "cannot listen on {}:{}: {}; choose another --host or --port",
                config.address.host, config.address.port, error.what());
  }
  port_ = listener->getPort();
  const MutexLock lock(stop_mutex_);
  listener_ = std::move(listener);
  listener_->runThreaded();
  // Waiting for each thread's first letter also makes sure that the accept loop can be told to end: it starts them.
  on_each_thread([](ReactorThread&) {
    sigset_t pipe_signal;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);  // sendfile has no flag against it
    pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
  });
  return {};
}

void PistacheTransport::stop(std::chrono::milliseconds flush_wait) {
  const MutexLock stopping(stop_mutex_);
  if (listener_ == nullptr) return;
  {
    const MutexLock lock(shared_->mutex);
    shared_->refusing = true;
  }
  on_each_thread([](ReactorThread& thread) { thread.stop_sockets(); });
  {
    const SteadyTime deadline = Clock::system().now() + flush_wait;
    const MutexLock lock(shared_->mutex);
    while (shared_->connections > 0) {
      if (!shared_->emptied.wait_until(shared_->mutex, deadline)) break;
    }
  }
  on_each_thread([](ReactorThread& thread) { thread.close_sockets(); });
  listener_->shutdown();
  listener_.reset();  // joins the threads
  for (const auto& mailbox : shared_->mailboxes) mailbox->close();
}

}  // namespace

Result<std::unique_ptr<Transport>> Transport::listen(const TransportConfig& config, Clock& clock,
                                                     SocketOwnerFactory factory) {
  KCORAL_CHECK(config.io_threads > 0);
  auto shared = std::make_shared<Shared>(clock, std::move(factory), within_descriptors(config.connections_max, 2));
  auto transport = std::make_unique<PistacheTransport>(std::move(shared));
  if (auto started = transport->start(config); !started) return fail(started.error());
  return transport;
}

}  // namespace kcoral::gateway
