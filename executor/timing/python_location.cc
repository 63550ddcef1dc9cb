#include "executor/timing/python_location.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "executor/timing/message.h"

namespace kcoral::timing {
namespace {

// The interpreter shows at most 100 frames, with names of at most 500 characters each.
constexpr size_t kDumpBytesMax = 128 << 10;

/// Part of a text.
struct Slice {
  const char* data;
  size_t length;
};

bool is_below(Slice path, const char* directory, size_t length) {
  while (length > 1 && directory[length - 1] == '/') --length;
  return length > 0 && path.length > length && memcmp(path.data, directory, length) == 0 && path.data[length] == '/';
}

bool is_below_one_of(Slice path, const char* directories) {
  for (const char* line = directories; line != nullptr && *line != '\0';) {
    const char* end = strchrnul(line, '\n');
    if (is_below(path, line, static_cast<size_t>(end - line))) return true;
    line = *end == '\0' ? end : end + 1;
  }
  return false;
}

/// Reads `  File "PATH", line N in NAME`. False for any other line.
bool read_frame(Slice line, Slice& path, Slice& number) {
  constexpr char kBefore[] = "  File \"";
  constexpr char kBetween[] = "\", line ";
  constexpr size_t kBeforeLength = sizeof kBefore - 1, kBetweenLength = sizeof kBetween - 1;
  if (line.length < kBeforeLength || memcmp(line.data, kBefore, kBeforeLength) != 0) return false;
  path.data = line.data + kBeforeLength;
  const auto* between =
      static_cast<const char*>(memmem(path.data, line.length - kBeforeLength, kBetween, kBetweenLength));
  if (between == nullptr) return false;
  path.length = static_cast<size_t>(between - path.data);
  number.data = between + kBetweenLength;
  number.length = 0;
  const auto rest = static_cast<size_t>(line.data + line.length - number.data);
  while (number.length < rest && number.data[number.length] >= '0' && number.data[number.length] <= '9') {
    ++number.length;
  }
  return number.length > 0;
}

void write_location(Slice path, Slice number, char* location, size_t size) {
  snprintf(location, size, "%.*s:%.*s", static_cast<int>(path.length), path.data, static_cast<int>(number.length),
           number.data);
}

/// The dump of the calling thread's frames; empty if there is none.
void dump_frames(void (*dump)(int, void*), void* thread_state, char* text, size_t size) {
  text[0] = '\0';
  const int fd = memfd_create("frames", MFD_CLOEXEC);
  if (fd < 0) return;
  dump(fd, thread_state);
  const ssize_t length = pread(fd, text, size - 1, 0);
  text[length > 0 ? length : 0] = '\0';
  close(fd);
}

}  // namespace

bool location_in_dump(const char* dump, const char* skipped_directory, const char* own_directories, char* location,
                      size_t size) {
  bool found = false;
  for (const char* start = dump; *start != '\0';) {
    const char* end = strchrnul(start, '\n');
    Slice path, number;
    if (read_frame({start, static_cast<size_t>(end - start)}, path, number)) {
      if (is_below_one_of(path, own_directories)) {
        write_location(path, number, location, size);
        return true;
      }
      if (!found && !is_below_one_of(path, skipped_directory)) {
        write_location(path, number, location, size);
        found = true;
      }
    }
    start = *end == '\0' ? end : end + 1;
  }
  return found;
}

void describe_location(const char* skipped_directory, const char* own_directories, char* location, size_t size) {
  const auto thread_state = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  const auto dump = reinterpret_cast<void (*)(int, void*)>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  void* state = thread_state != nullptr ? thread_state() : nullptr;
  if (state == nullptr) {
    copy_text(location, size, "a native thread");
    return;
  }
  copy_text(location, size, "a thread of Python");
  auto* text = dump != nullptr ? static_cast<char*>(malloc(kDumpBytesMax)) : nullptr;
  if (text == nullptr) return;
  dump_frames(dump, state, text, kDumpBytesMax);
  location_in_dump(text, skipped_directory, own_directories, location, size);
  free(text);
}

}  // namespace kcoral::timing
