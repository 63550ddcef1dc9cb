"""What the driver says about its devices: memory in use, and the processes that have a context there.

Through NVML, which makes no context of its own: looking changes nothing.
"""

from __future__ import annotations

import functools
import os
import re
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


def process_ids(index: int) -> set[int]:
    nvml = _nvml()
    return {each.pid for each in nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(index))}
