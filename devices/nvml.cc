// Devices through NVML, which is loaded at run time: the server runs where there is no driver.
#include <dlfcn.h>
#include <sys/stat.h>

#include <array>
#include <utility>

#include "devices/devices.h"
#include "devices/nvml_abi.h"

namespace kcoral::devices {
namespace {

namespace abi = nvml_abi;

struct Functions {
  abi::Init* init = nullptr;
  abi::Shutdown* shutdown = nullptr;
  abi::ErrorString* error_string = nullptr;
  abi::SystemDriverVersion* driver_version = nullptr;
  abi::DeviceCount* count = nullptr;
  abi::DeviceByIndex* handle = nullptr;
  abi::DeviceName* name = nullptr;
  abi::DeviceUuid* uuid = nullptr;
  abi::DeviceMinorNumber* minor = nullptr;
  abi::DeviceCapability* capability = nullptr;
  abi::DeviceMemory* memory = nullptr;
  abi::DeviceUtilisation* utilisation = nullptr;
  abi::DeviceTemperature* temperature = nullptr;
  abi::DeviceClock* clock = nullptr;
  abi::DeviceProcesses* processes = nullptr;
};

class Library {
 public:
  Library() = default;
  ~Library() {
    if (is_started_) functions_.shutdown();
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// False where there is no NVML, or no driver under it.
  Result<bool> start() {
    handle_ = ::dlopen(abi::kLibraryName, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) return false;
    if (auto found = find_all(); !found) return fail(found.error());
    const abi::Return started = functions_.init();
    if (started == abi::kDriverNotLoaded || started == abi::kLibraryNotFound) return false;
    if (auto checked = check(started, "nvmlInit"); !checked) return fail(checked.error());
    is_started_ = true;
    return true;
  }

  const Functions& operator*() const { return functions_; }
  const Functions* operator->() const { return &functions_; }

  Status check(abi::Return result, const char* call) const {
    if (result == abi::kSuccess) return {};
    return fail(ErrorKind::kEnvironment, "the NVIDIA driver answers {} with: {}", call,
                functions_.error_string(result));
  }

 private:
  template <typename Function>
  Status find(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (function != nullptr) return {};
    return fail(ErrorKind::kEnvironment, "{} has no {}: the driver is too old", abi::kLibraryName, name);
  }

  Status find_all() {
    auto& f = functions_;
    for (const Status& found :
         {find("nvmlInit_v2", f.init), find("nvmlShutdown", f.shutdown), find("nvmlErrorString", f.error_string),
          find("nvmlSystemGetDriverVersion", f.driver_version), find("nvmlDeviceGetCount_v2", f.count),
          find("nvmlDeviceGetHandleByIndex_v2", f.handle), find("nvmlDeviceGetName", f.name),
          find("nvmlDeviceGetUUID", f.uuid), find("nvmlDeviceGetMinorNumber", f.minor),
          find("nvmlDeviceGetCudaComputeCapability", f.capability), find("nvmlDeviceGetMemoryInfo", f.memory),
          find("nvmlDeviceGetUtilizationRates", f.utilisation), find("nvmlDeviceGetTemperature", f.temperature),
          find("nvmlDeviceGetClockInfo", f.clock), find("nvmlDeviceGetComputeRunningProcesses_v3", f.processes)}) {
      if (!found) return found;
    }
    return {};
  }

  void* handle_ = nullptr;
  bool is_started_ = false;
  Functions functions_;
};

class NvmlDevices final : public Devices {
 public:
  /// False where there is nothing to list.
  Result<bool> open() {
    auto started = library_.start();
    if (!started || !*started) return started;
    std::array<char, 96> version{};
    if (auto asked = library_.check(library_->driver_version(version.data(), version.size()), "its version"); !asked)
      return fail(asked.error());
    driver_version_ = version.data();
    unsigned count = 0;
    if (auto asked = library_.check(library_->count(&count), "nvmlDeviceGetCount"); !asked) return fail(asked.error());
    for (unsigned index = 0; index < count; ++index) {
      if (auto added = add(index); !added) return fail(added.error());
    }
    return count > 0;
  }

  const std::vector<Device>& list() const override { return devices_; }
  const std::string& driver_version() const override { return driver_version_; }

  Result<DeviceState> look(int id) const override {
    abi::Device handle = handles_.at(static_cast<size_t>(id));
    DeviceState state;
    abi::Memory memory{};
    if (auto asked = library_.check(library_->memory(handle, &memory), "nvmlDeviceGetMemoryInfo"); !asked)
      return fail(asked.error());
    state.memory_used_bytes = memory.used;
    abi::Utilisation utilisation{};
    if (library_->utilisation(handle, &utilisation) == abi::kSuccess) state.utilisation_percent = utilisation.gpu;
    unsigned number = 0;
    if (library_->temperature(handle, abi::kTemperatureGpu, &number) == abi::kSuccess)
      state.temperature_celsius = number;
    if (library_->clock(handle, abi::kClockSm, &number) == abi::kSuccess) state.sm_clock_mhz = number;
    if (auto asked = read_processes(handle, state.processes); !asked) return fail(asked.error());
    return state;
  }

 private:
  Status add(unsigned index) {
    abi::Device handle = nullptr;
    std::array<char, 96> name{}, uuid{};
    unsigned minor = 0;
    int major_capability = 0, minor_capability = 0;
    abi::Memory memory{};
    if (auto asked = library_.check(library_->handle(index, &handle), "nvmlDeviceGetHandleByIndex"); !asked)
      return asked;
    for (const auto& [call, result] : {std::pair{"nvmlDeviceGetName", library_->name(handle, name.data(), name.size())},
                                       std::pair{"nvmlDeviceGetUUID", library_->uuid(handle, uuid.data(), uuid.size())},
                                       std::pair{"nvmlDeviceGetMinorNumber", library_->minor(handle, &minor)},
                                       std::pair{"nvmlDeviceGetCudaComputeCapability",
                                                 library_->capability(handle, &major_capability, &minor_capability)},
                                       std::pair{"nvmlDeviceGetMemoryInfo", library_->memory(handle, &memory)}}) {
      if (auto asked = library_.check(result, call); !asked) return asked;
    }
    Device device;
    device.id = static_cast<int>(index);
    device.name = name.data();
    device.uuid = uuid.data();
    device.arch = fmt::format("sm_{}{}{}", major_capability, minor_capability, major_capability >= 9 ? "a" : "");
    device.node = fmt::format("/dev/nvidia{}", minor);
    device.memory_bytes = memory.total;
    handles_.push_back(handle);
    devices_.push_back(std::move(device));
    return {};
  }

  Status read_processes(abi::Device handle, std::vector<DeviceProcess>& processes) const {
    std::vector<abi::Process> found(32);
    for (;;) {
      auto count = static_cast<unsigned>(found.size());
      const abi::Return result = library_->processes(handle, &count, found.data());
      if (result != abi::kInsufficientSize) {
        if (auto asked = library_.check(result, "nvmlDeviceGetComputeRunningProcesses"); !asked) return asked;
        found.resize(count);
        break;
      }
      found.resize(count + 32);
    }
    for (const abi::Process& each : found) {
      DeviceProcess process{static_cast<pid_t>(each.pid), {}};
      // In containers some drivers say 0 (they look the process up by another number), and no context is that small.
      const bool is_known = each.memory_bytes != abi::kMemoryNotAvailable && each.memory_bytes != 0;
      if (is_known) process.memory_bytes = each.memory_bytes;
      processes.push_back(process);
    }
    return {};
  }

  Library library_;
  std::string driver_version_;
  std::vector<abi::Device> handles_;  // by id
  std::vector<Device> devices_;
};

}  // namespace

Result<std::unique_ptr<Devices>> open_devices() {
  auto devices = std::make_unique<NvmlDevices>();
  auto opened = devices->open();
  if (!opened) return fail(opened.error());
  if (!*opened) return std::unique_ptr<Devices>();
  return std::unique_ptr<Devices>(std::move(devices));
}

std::vector<std::string> shared_device_nodes() {
  std::vector<std::string> nodes;
  for (const char* node : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}) {
    struct stat status;
    if (::stat(node, &status) == 0) nodes.emplace_back(node);
  }
  return nodes;
}

}  // namespace kcoral::devices
