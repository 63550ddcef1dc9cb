#include "tests/support/fake_gpu/config.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/fake_gpu/fake_gpu.h"

namespace kcoral::fake_gpu {
namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;

const char* variable(const std::string& name) {
  const char* value = getenv(("FAKE_GPU_" + name).c_str());
  return value == nullptr || *value == '\0' ? nullptr : value;
}

uint64_t mib(const std::string& text) { return strtoull(text.c_str(), nullptr, 10) * kMib; }

/// Calls `take` with the first word and the rest of each line of the configuration.
template <typename Take>
void read_config(const Take& take) {
  const char* path = variable("CONFIG");
  if (path == nullptr) return;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    if (words >> first) take(first, words);
  }
  if (!file.eof()) {
    fprintf(stderr, "the fake GPU cannot read %s\n", path);
    abort();
  }
}

DeviceFacts device_from(std::istringstream& words) {
  DeviceFacts device;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    if (key == "name") {  // the rest of the line
      std::string rest;
      std::getline(words, rest);
      device.name = value + rest;
    } else if (key == "arch") {
      sscanf(value.c_str(), "%d.%d", &device.capability_major, &device.capability_minor);
    } else if (key == "minor") {
      device.minor = static_cast<unsigned>(atoi(value.c_str()));
    } else if (key == "mib") {
      device.bytes = mib(value);
    } else if (key == "used_mib") {
      device.used_bytes = mib(value);
    }
  }
  return device;
}

}  // namespace

bool has_nodes() { return variable("CONFIG") != nullptr; }

std::vector<DeviceFacts> devices() {
  std::vector<DeviceFacts> found;
  if (!has_nodes()) {
    const char* count = variable("DEVICES");
    found.resize(count == nullptr ? 1 : static_cast<size_t>(atoi(count)));
    for (DeviceFacts& device : found) device.processes = {{1000, kMib}, {1001, kMib}, {1002, kMib}};
    return found;
  }
  read_config([&](const std::string& first, std::istringstream& words) {
    if (first == "device") found.push_back(device_from(words));
    size_t device = 0;
    Process process;
    std::string bytes;
    if (first != "process" || !(words >> device >> process.pid >> bytes) || device >= found.size()) return;
    if (bytes != "?") process.bytes = mib(bytes);
    found[device].processes.push_back(process);
  });
  return found;
}

std::string node_of(const DeviceFacts& device) { return "/dev/nvidia" + std::to_string(device.minor); }

std::string pci_bus_id(size_t device) {
  std::array<char, 32> text{};
  snprintf(text.data(), text.size(), "00000000:%02zX:00.0", 0x1A + device);
  return text.data();
}

}  // namespace kcoral::fake_gpu

int64_t fake_gpu_fault(const char* name) {
  using namespace kcoral::fake_gpu;
  if (const char* value = variable(name)) return strtoll(value, nullptr, 10);
  int64_t fault = 0;
  read_config([&](const std::string& first, std::istringstream& words) {
    std::string which;
    if (first == "fault" && words >> which && which == name) words >> fault;
  });
  return fault;
}
