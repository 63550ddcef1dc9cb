#include "server/device_choice.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.h"
#include "schema/limits.h"

namespace kcoral::server {
namespace {

// Between two looks at a device that is being left, which takes some 100 ms.
constexpr std::chrono::milliseconds kLookPause{50};

Status require_node(const DeviceSurroundings& surroundings, const std::string& node, const std::string& makes_it) {
  if (surroundings.exists(node)) return {};
  return fail(ErrorKind::kEnvironment,
              "{} is missing, which CUDA needs and programs may not make: run `{}` as root, after every boot; in a "
              "container, have it passed in",
              node, makes_it);
}

/// The driver's own nodes are made by the first root process that uses them. NVML does without the one for memory.
Status require_nodes(const DeviceSurroundings& surroundings, const std::vector<devices::Device>& devices) {
  for (const auto& [node, makes_it] : {std::pair("/dev/nvidiactl", "nvidia-modprobe -c 255"),
                                       std::pair("/dev/nvidia-uvm", "nvidia-modprobe -u -c 0")}) {
    if (auto found = require_node(surroundings, node, makes_it); !found) return found;
  }
  for (const devices::Device& device : devices) {
    const std::string minor = device.node.substr(device.node.find_last_not_of("0123456789") + 1);
    if (auto found = require_node(surroundings, device.node, "nvidia-modprobe -c " + minor); !found) {
      return fail(ErrorKind::kEnvironment, "GPU {}: {}", device.id, found.error().message);
    }
  }
  return {};
}

Status require_one_architecture(const std::vector<devices::Device>& devices) {
  const devices::Device& first = devices.front();
  for (const devices::Device& device : devices) {
    if (device.arch == first.arch) continue;
    return fail(ErrorKind::kEnvironment,
                "GPU {} is {} and GPU {} is {}: the GPUs of one server have one architecture; choose with --gpus",
                first.id, first.arch, device.id, device.arch);
  }
  return {};
}

/// "process 4711 (python3)".
std::string describe_process(const devices::ProcessTable& processes, pid_t pid) {
  if (const auto process = processes.find(pid)) return fmt::format("process {} ({})", pid, process->name);
  if (processes.is_whole_machine()) return fmt::format("process {}", pid);
  return fmt::format("process {}, which lives outside of this container (or has another number in it)", pid);
}

Status wait_until_unused(const DeviceSurroundings& surroundings, const devices::Devices& all,
                         const std::vector<devices::Device>& devices) {
  const SteadyTime end = surroundings.clock.now() + limits::kKillWait;
  for (const devices::Device& device : devices) {
    for (bool said = false;; surroundings.wait(kLookPause)) {
      auto state = all.look(device.id);
      if (!state) return fail(ErrorKind::kEnvironment, "GPU {}: {}", device.id, state.error().message);
      if (state->processes.empty()) break;
      const pid_t user = state->processes.front().pid;
      if (surroundings.clock.now() >= end) {
        return fail(ErrorKind::kEnvironment,
                    "GPU {} is in use by {}: kcoral needs its GPUs for itself; end that process, or choose others "
                    "with --gpus",
                    device.id, describe_process(surroundings.processes, user));
      }
      if (std::exchange(said, true)) continue;
      surroundings.say_what_for(fmt::format("waiting for process {} to leave GPU {} (for at most {} s)", user,
                                            device.id, std::chrono::seconds(limits::kKillWait).count()));
    }
  }
  return {};
}

/// What a name in CUDA_VISIBLE_DEVICES means: a number, as nvidia-smi has it, or a UUID or a beginning that only one
/// has.
const devices::Device* find_visible(const std::vector<devices::Device>& all, std::string_view name) {
  const devices::Device* found = nullptr;
  for (const devices::Device& device : all) {
    if (name != std::to_string(device.id) && !(name.starts_with("GPU-") && device.uuid.starts_with(name))) continue;
    if (found != nullptr) return nullptr;
    found = &device;
  }
  return found;
}

Result<std::set<int>> visible_ids(const std::string& names, const std::vector<devices::Device>& all) {
  std::set<int> ids;
  std::istringstream rest(names);
  for (std::string name; std::getline(rest, name, ',');) {
    const devices::Device* const device = find_visible(all, name);
    if (device == nullptr) {
      return fail(ErrorKind::kEnvironment,
                  "CUDA_VISIBLE_DEVICES is \"{}\", and \"{}\" names no GPU of this machine, or several; it has 0 to {} "
                  "(nvidia-smi -L lists them and their UUIDs; parts of one are not served): unset it, or choose with "
                  "--gpus",
                  names, name, all.size() - 1);
    }
    ids.insert(device->id);
  }
  if (!ids.empty()) return ids;
  return fail(ErrorKind::kEnvironment,
              "CUDA_VISIBLE_DEVICES is empty, which hides every GPU: unset it, choose with --gpus, or run without one "
              "(--device cpu)");
}

Result<std::vector<devices::Device>> wanted_devices(const ServerOptions& options,
                                                    const std::vector<devices::Device>& all,
                                                    const std::optional<std::string>& visible) {
  std::set<int> ids(options.gpus.begin(), options.gpus.end());
  if (ids.empty() && !visible) return all;
  if (ids.empty()) {
    auto found = visible_ids(*visible, all);
    if (!found) return fail(found.error());
    ids = std::move(*found);
  }
  std::vector<devices::Device> wanted;
  for (const int id : ids) {
    if (static_cast<size_t>(id) >= all.size()) {
      return fail(ErrorKind::kEnvironment, "--gpus: there is no GPU {}; this machine has 0 to {}", id, all.size() - 1);
    }
    wanted.push_back(all[static_cast<size_t>(id)]);
  }
  return wanted;
}

/// Neighbours see different devices. A program for several runs in a slot that sees them all: one for each pair.
std::vector<std::vector<int>> arrange_slots(const std::vector<devices::Device>& devices, uint32_t slots_per_gpu) {
  std::vector<std::vector<int>> slots;
  for (uint32_t slot = 0; slot < slots_per_gpu; ++slot) {
    for (const devices::Device& device : devices) slots.push_back({device.id});
  }
  std::vector<int> all;
  for (const devices::Device& device : devices) all.push_back(device.id);
  slots.insert(slots.end(), devices.size() / 2, all);
  return slots;
}

}  // namespace

DeviceSurroundings DeviceSurroundings::real() {
  DeviceSurroundings real;
  real.exists = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
  };
  real.wait = [](std::chrono::milliseconds time) { std::this_thread::sleep_for(time); };
  real.say_what_for = [](const std::string& what) { spdlog::info("{}", what); };
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) real.visible_devices = visible;
  return real;
}

Result<std::unique_ptr<devices::Devices>> open_devices(const ServerOptions& options) {
  using DeviceMode = ServerOptions::DeviceMode;
  if (options.device == DeviceMode::kCpu) return std::unique_ptr<devices::Devices>();
  auto opened = devices::open_devices();
  if (!opened) {
    return fail(ErrorKind::kEnvironment, "{}; with --device cpu the server runs without a GPU", opened.error().message);
  }
  if (*opened == nullptr && (options.device == DeviceMode::kGpu || !options.gpus.empty())) {
    return fail(ErrorKind::kEnvironment,
                "there is no NVIDIA GPU: libnvidia-ml.so.1 cannot be loaded, finds no driver, or lists no device");
  }
  return opened;
}

Result<DeviceChoice> choose_devices(const ServerOptions& options, const devices::Devices* all,
                                    const DeviceSurroundings& surroundings) {
  if (all == nullptr && options.slots_per_gpu_given) {
    return fail(ErrorKind::kEnvironment,
                "--workers-per-gpu is for a GPU server, and {}; on a CPU server it is --num-workers",
                options.device == ServerOptions::DeviceMode::kCpu ? "this is none (--device cpu)"
                                                                  : "this machine shows no NVIDIA GPU");
  }
  if (all == nullptr) return DeviceChoice{{}, std::vector<std::vector<int>>(options.slots)};
  if (options.slots_given) {
    return fail(ErrorKind::kEnvironment,
                "--num-workers is for a CPU server (--device cpu); on GPUs it is --workers-per-gpu");
  }
  auto chosen = wanted_devices(options, all->list(), surroundings.visible_devices);
  if (!chosen) return fail(chosen.error());
  for (const Status& checked : {require_one_architecture(*chosen), require_nodes(surroundings, *chosen)}) {
    if (!checked) return fail(checked.error());
  }
  if (auto unused = wait_until_unused(surroundings, *all, *chosen); !unused) return fail(unused.error());
  auto slots = arrange_slots(*chosen, options.slots_per_gpu);
  return DeviceChoice{std::move(*chosen), std::move(slots)};
}

}  // namespace kcoral::server
