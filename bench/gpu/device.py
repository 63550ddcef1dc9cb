"""What the driver says about its devices: memory in use, and the processes that have a context there.

Through NVML, which makes no context of its own: looking changes nothing.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any

MIB = 1 << 20


@functools.cache
def _nvml() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def device_count() -> int:
    """From the device nodes, so that it may be asked before a fork: 0 where there is no driver."""
    return sum(1 for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name))


def used_mib(index: int) -> float:
    nvml = _nvml()
    return nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index)).used / MIB


def state(index: int) -> dict[str, float | None]:
    """What may explain that one measurement differs from another; None for what the device does not tell."""
    nvml = _nvml()
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def known(ask: Callable[[], float]) -> float | None:
        try:
            return ask()
        except nvml.NVMLError:
            return None

    return {
        "sm_clock_mhz": known(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": known(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "temperature_c": known(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "power_w": known(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        "used_mib": known(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / MIB),
        "processes": known(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
    }


def process_ids(index: int) -> set[int]:
    nvml = _nvml()
    return {each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(index))}
