#include "executor/timing/activity_buffers.h"

#include "executor/timing/libraries.h"
#include "executor/timing/lock.h"

namespace kcoral::timing {
namespace {

constexpr size_t kBufferBytes = size_t{2} << 20;  // about 10,000 kernels

/// A buffer that nobody uses holds the link to the next.
struct FreeBuffer {
  FreeBuffer* next;
};

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards all of these
bool is_open = false;
Series* target = nullptr;
FreeBuffer* free_buffers = nullptr;

}  // namespace

ActivityBuffers activity_buffers;

void ActivityBuffers::open() {
  const Lock lock(mutex);
  is_open = true;
}

void ActivityBuffers::shut() {
  const Lock lock(mutex);
  is_open = false;
  target = nullptr;
  while (free_buffers != nullptr) {
    FreeBuffer* buffer = free_buffers;
    free_buffers = buffer->next;
    free(buffer);
  }
}

void ActivityBuffers::deliver_to(Series* series) {
  const Lock lock(mutex);
  target = series;
}

uint32_t ActivityBuffers::marks_seen() {
  const Lock lock(mutex);
  return target != nullptr ? target->marks_seen() : 0;
}

void ActivityBuffers::requested(uint8_t** buffer, size_t* size, size_t* records_max) {
  const Lock lock(mutex);
  *buffer = nullptr;
  *size = 0;
  *records_max = 0;  // as many as fit
  if (!is_open) return;
  if (free_buffers != nullptr) {
    *buffer = reinterpret_cast<uint8_t*>(free_buffers);
    free_buffers = free_buffers->next;
  } else {
    *buffer = static_cast<uint8_t*>(aligned_alloc(abi::kRecordAlignment, kBufferBytes));
  }
  // Without memory CUPTI drops records and counts them.
  if (*buffer != nullptr) *size = kBufferBytes;
}

void ActivityBuffers::completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid_size) {
  if (buffer == nullptr) return;
  const Lock lock(mutex);
  if (target != nullptr && valid_size > 0) activity_buffers.read(buffer, valid_size);
  if (is_open) {
    auto* freed = reinterpret_cast<FreeBuffer*>(buffer);
    freed->next = free_buffers;
    free_buffers = freed;
  } else {
    free(buffer);
  }
}

void ActivityBuffers::read(uint8_t* buffer, size_t valid_size) {
  abi::Activity* record = nullptr;
  abi::CuptiResult result;
  while ((result = cupti.activity_get_next_record(buffer, valid_size, &record)) == abi::kCuptiSuccess) {
    target->add(record);
  }
  if (result != abi::kCuptiMaxLimitReached) target->note_unreadable();
}

}  // namespace kcoral::timing
