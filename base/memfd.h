// Content in anonymous memory that processes share by descriptor: written once, then sealed, then only read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/unique_fd.h"

namespace kcoral {

/// Sealed content: nobody who holds the descriptor can change, grow or shrink it. Immutable, so thread-safe.
class SealedMemory {
 public:
  /// Takes a descriptor from somebody who is not trusted. Refuses what is no memfd, lacks a seal
  /// (F_SEAL_WRITE, F_SEAL_GROW, F_SEAL_SHRINK) or is larger than `size_bytes_max`.
  static Result<std::shared_ptr<const SealedMemory>> adopt(UniqueFd fd, uint64_t size_bytes_max);
  static Result<std::shared_ptr<const SealedMemory>> copy_of(std::string_view content);

  int fd() const { return fd_.get(); }
  uint64_t size_bytes() const { return size_bytes_; }

  /// Maps the content on first use and keeps it mapped as long as this object lives.
  Result<std::string_view> view() const;

  ~SealedMemory();
  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;

 private:
  struct Mapping;
  SealedMemory(UniqueFd fd, uint64_t size_bytes);

  UniqueFd fd_;
  uint64_t size_bytes_;
  std::unique_ptr<Mapping> mapping_;
};

/// Content being written. Not thread-safe.
class MemoryWriter {
 public:
  static Result<MemoryWriter> create(const char* name);

  /// Appends all of `bytes`; an error means that memory ran out.
  Status append(std::span<const std::byte> bytes);
  Status append(std::string_view text) { return append(std::as_bytes(std::span(text))); }
  uint64_t size_bytes() const { return size_bytes_; }
  /// A copy of what was written.
  Result<std::string> content() const;
  /// For somebody who reads along: what was written and what will be, with a position of its own. It cannot be written.
  Result<UniqueFd> open_for_reading() const;
  Result<std::shared_ptr<const SealedMemory>> seal() &&;

 private:
  explicit MemoryWriter(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
  uint64_t size_bytes_ = 0;
};

}  // namespace kcoral
