#include "executor/shortage.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace kcoral::executor {
namespace {

constexpr int kShortages[] = {EAGAIN, ENOMEM, EMFILE, ENFILE, ENOBUFS};
// Of the CUDA driver and of PyTorch, about the memory of a device.
constexpr std::string_view kOutOfMemory = "out of memory";

}  // namespace

bool tells_of_shortage(std::string_view message) {
  if (message.find(kOutOfMemory) != std::string_view::npos) return true;
  return std::any_of(std::begin(kShortages), std::end(kShortages),
                     [&](int number) { return message.find(::strerrordesc_np(number)) != std::string_view::npos; });
}

bool is_permanent(const Error& error) {
  return error.kind == ErrorKind::kEnvironment && !tells_of_shortage(error.message);
}

}  // namespace kcoral::executor
