// Where in its Python code a thread stands, seen from C code that this thread has called.
//
// The thread need not hold the interpreter's lock (PyTorch gives it up around most of its calls), and must not wait for
// it: whoever holds it may wait for a lock of CUDA's. So the interpreter's own means for crashes is used where it can
// be had (CPython 3.11 and 3.12 let others call it). It reads the frames of a thread without any lock and without
// touching an object; they stand still, for their thread is here. Elsewhere the frames are asked for as extensions do,
// if the thread happens to hold the lock.
//
// Thread-safe.
#pragma once

#include <cstddef>

namespace kcoral::timing {

/// "file:line", or what else is known of the calling thread. See kcoral_guard_begin for the directories.
void describe_location(const char* skipped_directory, const char* own_directories, char* location, size_t size);

/// The same of frames as the interpreter dumps them, innermost first. False if it shows nothing that counts.
bool location_in_dump(const char* dump, const char* skipped_directory, const char* own_directories, char* location,
                      size_t size);

}  // namespace kcoral::timing
