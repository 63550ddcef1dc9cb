#include "base/memfd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/mutex.h"

namespace kcoral {

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;

struct SealedMemory::Mapping {
  Mutex mutex;
  void* address KCORAL_GUARDED_BY(mutex) = nullptr;  // never changes once set
};

SealedMemory::SealedMemory(UniqueFd fd, uint64_t size_bytes)
    : fd_(std::move(fd)), size_bytes_(size_bytes), mapping_(std::make_unique<Mapping>()) {}

SealedMemory::~SealedMemory() {
  if (mapping_->address != nullptr) ::munmap(mapping_->address, size_bytes_);
}

Result<std::shared_ptr<const SealedMemory>> SealedMemory::adopt(UniqueFd fd, uint64_t size_bytes_max) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return fail(ErrorKind::kEngine, "a descriptor that should be a sealed memfd is none");
  if ((seals & kSeals) != kSeals) return fail(ErrorKind::kEngine, "a memfd is not sealed: seals {:#x}", seals);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return fail_errno("fstat", "memfd");
  const auto size_bytes = static_cast<uint64_t>(status.st_size);
  if (size_bytes > size_bytes_max) {
    return fail(ErrorKind::kEngine, "a memfd holds {} bytes; at most {} are accepted", size_bytes, size_bytes_max);
  }
  return std::shared_ptr<const SealedMemory>(new SealedMemory(std::move(fd), size_bytes));
}

Result<std::shared_ptr<const SealedMemory>> SealedMemory::copy_of(std::string_view content) {
  auto writer = MemoryWriter::create("kcoral");
  if (!writer) return fail(writer.error());
  if (auto appended = writer->append(content); !appended) return fail(appended.error());
  return std::move(*writer).seal();
}

Result<std::string_view> SealedMemory::view() const {
  if (size_bytes_ == 0) return std::string_view();
  const MutexLock lock(mapping_->mutex);
  if (mapping_->address == nullptr) {
    void* address = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, fd_.get(), 0);
    if (address == MAP_FAILED) return fail_errno("mmap", "memfd");
    mapping_->address = address;
  }
  return std::string_view(static_cast<const char*>(mapping_->address), size_bytes_);
}

Result<MemoryWriter> MemoryWriter::create(const char* name) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return fail_errno("memfd_create");
  return MemoryWriter(std::move(fd));
}

Status MemoryWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return fail_errno("write", "memfd");
    }
    size_bytes_ += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Result<std::string> MemoryWriter::content() const {
  std::string content(size_bytes_, '\0');
  for (size_t offset = 0; offset < content.size();) {
    const ssize_t size =
        ::pread(fd_.get(), content.data() + offset, content.size() - offset, static_cast<off_t>(offset));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return fail_errno("read", "memfd");
    KCORAL_CHECK(size > 0);
    offset += static_cast<size_t>(size);
  }
  return content;
}

Result<UniqueFd> MemoryWriter::open_for_reading() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd_.get());
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_errno("open", path);
  return fd;
}

Result<std::shared_ptr<const SealedMemory>> MemoryWriter::seal() && {
  if (::fcntl(fd_.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) return fail_errno("seal", "memfd");
  return SealedMemory::adopt(std::move(fd_), size_bytes_);
}

}  // namespace kcoral
