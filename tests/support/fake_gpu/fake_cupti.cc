// libcupti.so.13: hears of everything on the fake device, and keeps records of it until they are flushed.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "executor/timing/cupti_abi.h"
#include "tests/support/fake_gpu/fake_gpu.h"

using namespace kcoral::timing::abi;

namespace {

constexpr CuptiResult kInvalidParameter = 1;
constexpr CuptiResult kInvalidKind = 21;
constexpr size_t kKindsMax = 64;
constexpr int kUnreadableKind = 63;
constexpr ActivityKind kForeignKind = 17;

/// A record in a buffer: any of the real ones fits, and their names are where the real ones are.
union Record {
  Activity activity;
  KernelActivity kernel;
  MemcpyActivity memcpy;
  PeerMemcpyActivity peer_memcpy;
  MemsetActivity memset;
  unsigned char room[192];
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards all of these
bool kinds[kKindsMax] = {};
bool subscribed = false;
Callback callback = nullptr;
void* callback_user = nullptr;
bool domains[8] = {};
BufferRequested buffer_requested = nullptr;
BufferCompleted buffer_completed = nullptr;
int64_t buffers_held = 0;
int64_t record_count = 0;
size_t dropped = 0;
int64_t flushes = 0;

/// Never destroyed, as the libraries themselves are not.
std::vector<fake_gpu_event>& pending() {
  static auto* events = new std::vector<fake_gpu_event>;
  return *events;
}

class Lock {
 public:
  Lock() { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};

bool is_nth(const char* fault) {
  const int64_t n = fake_gpu_fault(fault);
  return n > 0 && record_count % n == 0;
}

void keep(fake_gpu_event event) {
  if (event.kind <= 0 || !kinds[event.kind]) return;
  ++record_count;
  flushes = 0;
  if (is_nth("DROPPED")) {
    ++dropped;
    return;
  }
  if (is_nth("LOST")) return;
  if (is_nth("UNTIMED")) event.start = event.end = 0;
  pending().push_back(event);
  if (is_nth("TWICE")) pending().push_back(event);
}

/// The client's callback comes without the lock: it may call us.
void observe(const fake_gpu_event* event) {
  Callback target = nullptr;
  void* user = nullptr;
  const CallbackDomain domain = event->is_runtime ? kRuntimeApi : kDriverApi;
  {
    Lock lock;
    keep(*event);
    if (event->kind == 0 && subscribed && domains[domain]) {
      target = callback;
      user = callback_user;
    }
  }
  if (target == nullptr) return;
  for (int site = 0; site < 2; ++site) {
    const CallbackData data{site, event->name};
    target(user, domain, 1, &data);
  }
}

Record record_of(const fake_gpu_event& event) {
  Record record{};
  record.activity.kind = event.kind;
  switch (event.kind) {
    case kConcurrentKernel:
      record.kernel.start = event.start;
      record.kernel.end = event.end;
      record.kernel.correlation_id = event.correlation_id;
      record.kernel.name = event.name;
      record.kernel.grid[0] = event.grid;
      break;
    case kMemcpy:
      record.memcpy.start = event.start;
      record.memcpy.end = event.end;
      record.memcpy.correlation_id = event.correlation_id;
      record.memcpy.bytes = event.bytes;
      break;
    case kPeerMemcpy:
      record.peer_memcpy.start = event.start;
      record.peer_memcpy.end = event.end;
      record.peer_memcpy.correlation_id = event.correlation_id;
      record.peer_memcpy.bytes = event.bytes;
      break;
    case kMemset:
      record.memset.start = event.start;
      record.memset.end = event.end;
      record.memset.correlation_id = event.correlation_id;
      record.memset.value = event.value;
      record.memset.bytes = event.bytes;
      break;
    default:
      break;
  }
  return record;
}

/// What is to be handed over, in the order in which it will be.
std::vector<fake_gpu_event> take_pending() {
  std::vector<fake_gpu_event> events;
  events.swap(pending());
  if (fake_gpu_fault("FOREIGN") != 0 && !events.empty()) {
    events.push_back({kForeignKind, "foreign", 0, 0, 0, 0, 1, 2, 1});
    events.push_back({kConcurrentKernel, "earlier", 0, 1, 0, 0, 1, 2, 0});
  }
  if (fake_gpu_fault("UNREADABLE") != 0 && !events.empty())
    events.push_back({kUnreadableKind, "", 0, 0, 0, 0, 1, 2, 1});
  if (const int64_t seed = fake_gpu_fault("SHUFFLED")) {
    std::shuffle(events.begin(), events.end(), std::mt19937(static_cast<unsigned>(seed)));
  }
  return events;
}

/// Fills as many buffers as it takes, and hands them over.
void deliver(const std::vector<fake_gpu_event>& events) {
  for (size_t next = 0; next < events.size();) {
    uint8_t* buffer = nullptr;
    size_t size = 0, records_max = 0;
    buffer_requested(&buffer, &size, &records_max);
    if (buffer == nullptr) {
      dropped += events.size() - next;
      return;
    }
    ++buffers_held;
    size_t used = 0;
    for (; next < events.size() && used + sizeof(Record) <= size; ++next, used += sizeof(Record)) {
      const Record record = record_of(events[next]);
      memcpy(buffer + used, &record, sizeof record);
    }
    --buffers_held;
    buffer_completed(nullptr, 0, buffer, size, used);
  }
}

CuptiResult fault_result(const char* name) { return static_cast<CuptiResult>(fake_gpu_fault(name)); }

/// As the real one does: it finds the driver by itself.
void watch_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return;
  const auto watch = reinterpret_cast<decltype(&fake_gpu_observe)>(dlsym(driver, "fake_gpu_observe"));
  if (watch != nullptr) watch(&observe);
}

}  // namespace

extern "C" {

CuptiResult cuptiGetVersion(uint32_t* version) {
  *version = 130001;
  return kCuptiSuccess;
}

CuptiResult cuptiGetResultString(CuptiResult result, const char** text) {
  if (result == kCuptiInsufficientPrivileges) {
    *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
    return kCuptiSuccess;
  }
  return kInvalidParameter;
}

CuptiResult cuptiSubscribe(Subscriber* subscriber, Callback new_callback, void* user) {
  if (const CuptiResult error = fault_result("SUBSCRIBE_ERROR")) return error;
  const char* other = getenv("FAKE_GPU_SUBSCRIBER");
  Lock lock;
  if (subscribed || (other != nullptr && *other != '\0')) return kCuptiMultipleSubscribers;
  subscribed = true;
  callback = new_callback;
  callback_user = user;
  *subscriber = &subscribed;
  watch_driver();
  return kCuptiSuccess;
}

CuptiResult cuptiSubscribe_v2(Subscriber* subscriber, Callback new_callback, void* user, SubscriberParams* params) {
  const CuptiResult result = cuptiSubscribe(subscriber, new_callback, user);
  const char* other = getenv("FAKE_GPU_SUBSCRIBER");
  if (result == kCuptiMultipleSubscribers && params->old_name_size >= kOldNameSizeMin) {
    strncpy(params->old_name, other != nullptr ? other : "", params->old_name_size - 1);
  }
  return result;
}

CuptiResult cuptiUnsubscribe(Subscriber) {
  Lock lock;
  if (!subscribed) return kInvalidParameter;
  subscribed = false;
  std::fill(std::begin(domains), std::end(domains), false);
  return kCuptiSuccess;
}

CuptiResult cuptiEnableDomain(uint32_t enable, Subscriber, CallbackDomain domain) {
  Lock lock;
  if (!subscribed) return kInvalidParameter;
  domains[domain] = enable != 0;
  return kCuptiSuccess;
}

CuptiResult cuptiActivityEnable(ActivityKind kind) {
  if (kind == kPeerMemcpy) {
    if (const CuptiResult error = fault_result("ENABLE_ERROR")) return error;
  }
  Lock lock;
  watch_driver();
  kinds[kind] = true;
  return kCuptiSuccess;
}

CuptiResult cuptiActivityDisable(ActivityKind kind) {
  Lock lock;
  kinds[kind] = false;
  return kCuptiSuccess;
}

CuptiResult cuptiActivityRegisterCallbacks(BufferRequested requested, BufferCompleted completed) {
  if (const CuptiResult error = fault_result("REGISTER_ERROR")) return error;
  Lock lock;
  buffer_requested = requested;
  buffer_completed = completed;
  return kCuptiSuccess;
}

CuptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid_size, Activity** record) {
  uint8_t* next = *record == nullptr ? buffer : reinterpret_cast<uint8_t*>(*record) + sizeof(Record);
  if (next + sizeof(Record) > buffer + valid_size) return kCuptiMaxLimitReached;
  *record = reinterpret_cast<Activity*>(next);
  return (*record)->kind == kUnreadableKind ? kInvalidKind : kCuptiSuccess;
}

CuptiResult cuptiActivityGetNumDroppedRecords(Context, uint32_t, size_t* count) {
  Lock lock;
  *count = dropped;
  dropped = 0;
  return kCuptiSuccess;
}

#ifdef KCORAL_FAKE_CUPTI_OLD
#define cuptiActivityFlushAll an_older_name
#endif

CuptiResult cuptiActivityFlushAll(uint32_t) {
  if (const CuptiResult error = fault_result("FLUSH_ERROR")) return error;
  std::vector<fake_gpu_event> events;
  {
    Lock lock;
    if (buffer_requested == nullptr) return kInvalidParameter;
    if (++flushes <= fake_gpu_fault("LATE")) return kCuptiSuccess;
    events = take_pending();
  }
  deliver(events);
  return kCuptiSuccess;
}

int64_t fake_cupti_state(const char* name) {
  Lock lock;
  const auto is = [&](const char* known) { return strcmp(name, known) == 0; };
  if (is("subscribers")) return subscribed;
  if (is("kinds")) return std::count(std::begin(kinds), std::end(kinds), true);
  if (is("domains")) return std::count(std::begin(domains), std::end(domains), true);
  if (is("buffers")) return buffers_held;
  if (is("registered")) return buffer_requested != nullptr;
  return -1;
}
}
