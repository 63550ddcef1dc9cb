// The buffers that CUPTI fills with activity records, which it asks for and hands back on threads of its own.
//
// The functions that CUPTI is given take no argument of ours, so there is one of these in a process. While it is shut
// it declines to give buffers, which is what CUPTI is left with once a session has ended: it cannot be told to forget
// the functions.
//
// Thread-safe.
#pragma once

#include "executor/timing/activities.h"

namespace kcoral::timing {

class ActivityBuffers {
 public:
  /// Buffers are given from now on.
  void open();
  /// No more of them; those that CUPTI still holds are freed when it hands them back.
  void shut();

  /// The records that come from now on are added to `series`; null: they are thrown away.
  void deliver_to(Series* series);
  uint32_t marks_seen();

  static void requested(uint8_t** buffer, size_t* size, size_t* records_max);
  static void completed(void* context, uint32_t stream_id, uint8_t* buffer, size_t size, size_t valid_size);

 private:
  void read(uint8_t* buffer, size_t valid_size);
};

extern ActivityBuffers activity_buffers;

}  // namespace kcoral::timing
