#include "gateway/tar.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace kcoral::gateway {
namespace {

constexpr size_t kBlockBytes = 512;
constexpr uint64_t kFileBytesEnd = uint64_t{1} << 33;  // eleven octal digits

/// Where a field of a header begins, and how long it is: POSIX, "ustar Interchange Format".
struct Field {
  size_t offset;
  size_t length;
};
constexpr Field kName{0, 100};
constexpr Field kMode{100, 8};
constexpr Field kUid{108, 8};
constexpr Field kGid{116, 8};
constexpr Field kSize{124, 12};
constexpr Field kModified{136, 12};
constexpr Field kChecksum{148, 8};
constexpr Field kType{156, 1};
constexpr Field kMagic{257, 8};

void put(std::string& block, Field field, std::string_view text) {
  text = text.substr(0, field.length);
  std::copy(text.begin(), text.end(), block.begin() + static_cast<std::ptrdiff_t>(field.offset));
}

/// In octal digits with a NUL behind them.
void put_number(std::string& block, Field field, uint64_t number) {
  put(block, field, fmt::format("{:0{}o}", number, field.length - 1));
}

std::string header(std::string_view name, char type, uint64_t bytes, WallTime modified_at) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(modified_at.time_since_epoch()).count();
  std::string block(kBlockBytes, '\0');
  put(block, kName, name);
  put_number(block, kMode, type == '5' ? 0755 : 0644);
  put_number(block, kUid, 0);
  put_number(block, kGid, 0);
  put_number(block, kSize, bytes);
  put_number(block, kModified, static_cast<uint64_t>(std::max<int64_t>(seconds, 0)));
  put(block, kType, std::string_view(&type, 1));
  put(block, kMagic, std::string_view("ustar\00000", 8));
  put(block, kChecksum, std::string(kChecksum.length, ' '));
  const uint64_t sum = std::accumulate(block.begin(), block.end(), uint64_t{0},
                                       [](uint64_t total, char c) { return total + static_cast<unsigned char>(c); });
  put(block, kChecksum, fmt::format("{:06o}\0 ", sum));
  return block;
}

/// "LENGTH path=VALUE\n", whose length counts itself.
std::string pax_record(std::string_view path) {
  const std::string rest = fmt::format(" path={}\n", path);
  size_t length = rest.size() + 1;
  while (std::to_string(length).size() + rest.size() > length) ++length;
  return std::to_string(length) + rest;
}

/// ustar says nothing of characters beyond ASCII, and leaves it to each reader.
bool needs_pax(std::string_view path) {
  return path.size() > kName.length || std::any_of(path.begin(), path.end(), [](char c) { return c < 0; });
}

}  // namespace

void TarWriter::pad(uint64_t bytes) { framing_.append((kBlockBytes - bytes % kBlockBytes) % kBlockBytes, '\0'); }

void TarWriter::add_header(std::string_view path, char type, uint64_t bytes) {
  KCORAL_CHECK(bytes < kFileBytesEnd);
  if (needs_pax(path)) {
    const std::string record = pax_record(path);
    framing_ += header("pax-header", 'x', record.size(), modified_at_);
    framing_ += record;
    pad(record.size());
  }
  framing_ += header(path, type, bytes, modified_at_);
}

void TarWriter::add_directory(std::string_view path) { add_header(std::string(path) + '/', '5', 0); }

void TarWriter::add_file(std::string_view path, schema::Extent content) {
  const uint64_t bytes = content.length;
  add_header(path, '0', bytes);
  segments_.emplace_back(std::exchange(framing_, {}));
  segments_.emplace_back(std::move(content));
  pad(bytes);
}

std::vector<schema::Answer::Segment> TarWriter::finish() && {
  framing_.append(2 * kBlockBytes, '\0');
  segments_.emplace_back(std::move(framing_));
  return std::move(segments_);
}

}  // namespace kcoral::gateway
