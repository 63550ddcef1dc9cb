// What devices/nvml_abi.h declares by hand, against NVML's own header. All of it is checked while this is compiled; the
// test is there so that a run says that it was.
#include "devices/nvml_abi.h"

#include <gtest/gtest.h>
#include <nvml.h>

#include <type_traits>

namespace kcoral::nvml_abi {
namespace {

#define SAME_MEMBER(ours, our_member, theirs, their_member)                     \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                    sizeof(ours::our_member) == sizeof(theirs::their_member),   \
                #theirs "::" #their_member " lies elsewhere or has another size")

/// As the machine sees them: as many arguments, each of the same size, and pointers where the other has them.
template <typename OurReturn, typename... Ours, typename TheirReturn, typename... Theirs>
constexpr bool are_called_alike(OurReturn (*)(Ours...), TheirReturn (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
    return false;
  } else {
    return sizeof(OurReturn) == sizeof(TheirReturn) && std::is_pointer_v<OurReturn> == std::is_pointer_v<TheirReturn> &&
           ((sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>)&&...);
  }
}
#define SAME_CALL(ours, theirs) static_assert(are_called_alike(static_cast<ours*>(nullptr), &theirs))

static_assert(kSuccess == NVML_SUCCESS && kInsufficientSize == NVML_ERROR_INSUFFICIENT_SIZE);
static_assert(kDriverNotLoaded == NVML_ERROR_DRIVER_NOT_LOADED && kLibraryNotFound == NVML_ERROR_LIBRARY_NOT_FOUND);
static_assert(kClockSm == NVML_CLOCK_SM && kTemperatureGpu == NVML_TEMPERATURE_GPU);
static_assert(kMemoryNotAvailable == static_cast<unsigned long long>(NVML_VALUE_NOT_AVAILABLE));

SAME_MEMBER(Memory, total, nvmlMemory_t, total);
SAME_MEMBER(Memory, free, nvmlMemory_t, free);
SAME_MEMBER(Memory, used, nvmlMemory_t, used);
SAME_MEMBER(Utilisation, gpu, nvmlUtilization_t, gpu);
SAME_MEMBER(Utilisation, memory, nvmlUtilization_t, memory);
SAME_MEMBER(Process, pid, nvmlProcessInfo_t, pid);
SAME_MEMBER(Process, memory_bytes, nvmlProcessInfo_t, usedGpuMemory);
SAME_MEMBER(Process, gpu_instance, nvmlProcessInfo_t, gpuInstanceId);
SAME_MEMBER(Process, compute_instance, nvmlProcessInfo_t, computeInstanceId);
static_assert(sizeof(Memory) == sizeof(nvmlMemory_t) && sizeof(Utilisation) == sizeof(nvmlUtilization_t));
static_assert(sizeof(Process) == sizeof(nvmlProcessInfo_t));

SAME_CALL(Init, nvmlInit_v2);
SAME_CALL(Shutdown, nvmlShutdown);
SAME_CALL(ErrorString, nvmlErrorString);
SAME_CALL(SystemDriverVersion, nvmlSystemGetDriverVersion);
SAME_CALL(DeviceCount, nvmlDeviceGetCount_v2);
SAME_CALL(DeviceByIndex, nvmlDeviceGetHandleByIndex_v2);
SAME_CALL(DeviceByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);
SAME_CALL(DeviceName, nvmlDeviceGetName);
SAME_CALL(DeviceUuid, nvmlDeviceGetUUID);
SAME_CALL(DeviceMinorNumber, nvmlDeviceGetMinorNumber);
SAME_CALL(DeviceCapability, nvmlDeviceGetCudaComputeCapability);
SAME_CALL(DeviceMemory, nvmlDeviceGetMemoryInfo);
SAME_CALL(DeviceUtilisation, nvmlDeviceGetUtilizationRates);
SAME_CALL(DeviceTemperature, nvmlDeviceGetTemperature);
SAME_CALL(DeviceClock, nvmlDeviceGetClockInfo);
SAME_CALL(DeviceProcesses, nvmlDeviceGetComputeRunningProcesses_v3);
SAME_CALL(DeviceClockReasons, nvmlDeviceGetCurrentClocksThrottleReasons);

TEST(NvmlAbi, IsThatOfTheRealHeader) {}

}  // namespace
}  // namespace kcoral::nvml_abi
