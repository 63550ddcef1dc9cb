#include "executor/timing/message.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace kcoral::timing {

bool Outcome::fail(kcoral_timing_status status, const char* format, ...) {
  if (!ok()) return false;
  status_ = status;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message_, sizeof message_, format, arguments);
  va_end(arguments);
  return false;
}

void Outcome::clear() {
  status_ = KCORAL_TIMING_OK;
  message_[0] = '\0';
}

int Outcome::give(char* error, size_t error_size) const {
  copy_text(error, error_size, message_);
  return status_;
}

void copy_text(char* target, size_t target_size, const char* text) {
  if (target == nullptr || target_size == 0) return;
  const size_t length = strnlen(text, target_size - 1);
  memcpy(target, text, length);
  target[length] = '\0';
}

}  // namespace kcoral::timing
