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
constexpr int kFramesMax = 100;

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

/// What CPython offers to code that is loaded into it; null where it does not.
struct Interpreter {
  void* (*this_thread_state)();
  void* (*current_thread_state)();  // of whichever thread holds the lock, or of this one if it does
  void (*dump)(int fd, void* thread_state);
  void* (*get_frame)();
  void* (*frame_back)(void* frame);
  void* (*frame_code)(void* frame);
  int (*frame_line)(void* frame);
  void* (*get_attribute)(void* object, const char* name);
  const char* (*text_of)(void* string);
  void (*increment)(void* object);
  void (*decrement)(void* object);
  void (*fetch_error)(void** type, void** value, void** traceback);
  void (*restore_error)(void* type, void* value, void* traceback);
  void (*clear_error)();

  Interpreter() {
    take(this_thread_state, "PyGILState_GetThisThreadState");
    take(current_thread_state, "PyThreadState_GetUnchecked");  // from 3.13
    if (current_thread_state == nullptr) take(current_thread_state, "_PyThreadState_UncheckedGet");
    take(dump, "_Py_DumpTraceback");
    take(get_frame, "PyEval_GetFrame");
    take(frame_back, "PyFrame_GetBack");
    take(frame_code, "PyFrame_GetCode");
    take(frame_line, "PyFrame_GetLineNumber");
    take(get_attribute, "PyObject_GetAttrString");
    take(text_of, "PyUnicode_AsUTF8");
    take(increment, "Py_IncRef");
    take(decrement, "Py_DecRef");
    take(fetch_error, "PyErr_Fetch");
    take(restore_error, "PyErr_Restore");
    take(clear_error, "PyErr_Clear");
  }
  bool can_walk() const {
    return current_thread_state != nullptr && get_frame != nullptr && frame_back != nullptr && frame_code != nullptr &&
           frame_line != nullptr && get_attribute != nullptr && text_of != nullptr && increment != nullptr &&
           decrement != nullptr && fetch_error != nullptr && restore_error != nullptr && clear_error != nullptr;
  }

 private:
  template <typename Function>
  static void take(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  }
};

/// The frames of the calling thread. False if they cannot be had.
bool dump_frames(const Interpreter& python, void* thread_state, char* text, size_t size) {
  const int fd = memfd_create("frames", MFD_CLOEXEC);
  if (fd < 0) return false;
  python.dump(fd, thread_state);
  const ssize_t length = pread(fd, text, size - 1, 0);
  text[std::max<ssize_t>(length, 0)] = '\0';
  close(fd);
  return length > 0;
}

size_t write_frame(const Interpreter& python, void* frame, char* text, size_t size) {
  int written = 0;
  if (void* code = python.frame_code(frame)) {
    void* name = python.get_attribute(code, "co_filename");
    const char* path = name != nullptr ? python.text_of(name) : nullptr;
    if (path != nullptr) {
      written = snprintf(text, size, "  File \"%s\", line %d in\n", path, python.frame_line(frame));
    }
    if (name != nullptr) python.decrement(name);
    python.decrement(code);
  }
  python.clear_error();
  return written > 0 ? static_cast<size_t>(written) : 0;
}

/// The same for a thread that holds the interpreter's lock.
bool walk_frames(const Interpreter& python, char* text, size_t size) {
  void *type = nullptr, *value = nullptr, *traceback = nullptr;
  python.fetch_error(&type, &value, &traceback);
  text[0] = '\0';
  void* frame = python.get_frame();
  if (frame != nullptr) python.increment(frame);
  size_t length = 0;
  for (int depth = 0; frame != nullptr && depth < kFramesMax && length < size; ++depth) {
    length += write_frame(python, frame, text + length, size - length);
    void* back = python.frame_back(frame);
    python.decrement(frame);
    frame = back;
  }
  if (frame != nullptr) python.decrement(frame);
  python.restore_error(type, value, traceback);
  return length > 0;
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
  const Interpreter python;
  void* state = python.this_thread_state != nullptr ? python.this_thread_state() : nullptr;
  copy_text(location, size, state == nullptr ? "a native thread" : "a thread of Python");
  auto* text = state != nullptr ? static_cast<char*>(malloc(kDumpBytesMax)) : nullptr;
  if (text == nullptr) return;
  bool has_frames = false;
  if (python.dump != nullptr) {
    has_frames = dump_frames(python, state, text, kDumpBytesMax);
  } else if (python.can_walk() && python.current_thread_state() == state) {
    has_frames = walk_frames(python, text, kDumpBytesMax);
  }
  if (has_frames) location_in_dump(text, skipped_directory, own_directories, location, size);
  free(text);
}

}  // namespace kcoral::timing
