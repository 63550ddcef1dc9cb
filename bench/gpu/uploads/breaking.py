"""Programs that break the device, or leave it in use."""

import ctypes
import os
import signal
import subprocess
import sys

import torch
from driver import Kernels

FOREVER = -1

# A process that has a context and memory on the device, says so and stays.
HOLDER = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0)]
codes.append(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
codes.append(cuda.cuCtxSetCurrent(context))
codes.append(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)))
print(codes, flush=True)
time.sleep(3600)
"""


def _spin(cubin, ns):
    Kernels(cubin).launcher("spin", ctypes.c_longlong)(1, 1, ns)


def healthy(cubin):
    x = torch.arange(1024, dtype=torch.float32, device="cuda")
    return float((x + 1).sum().item())


def device_assert(cubin):
    x = torch.zeros(16, device="cuda")
    x[torch.tensor([1 << 20], device="cuda")]
    torch.cuda.synchronize()


def illegal_address(cubin):
    Kernels(cubin).launcher("store", ctypes.c_void_p)(1, 1, 0x10)
    torch.cuda.synchronize()


def out_of_resources(cubin):
    data = torch.zeros(160 * 1024, device="cuda")
    Kernels(cubin).launcher("greedy", ctypes.c_void_p, ctypes.c_int)(1, 1024, data.data_ptr(), 1)
    torch.cuda.synchronize()


def out_of_memory(cubin):
    kept = []
    while True:
        kept.append(torch.empty(16 << 30, dtype=torch.uint8, device="cuda"))


def infinite_kernel(cubin):
    _spin(cubin, FOREVER)
    torch.cuda.synchronize()


def leaked_streams(cubin):
    """Returns while 32 streams still have work."""
    launch = Kernels(cubin).launcher("spin", ctypes.c_longlong)
    for _ in range(32):
        with torch.cuda.stream(torch.cuda.Stream()):
            launch(1, 1, 300_000_000)
    return "left"


def child_holds_device(cubin):
    child = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE)
    return child.stdout.readline().decode().strip()


def exit_during_kernel(cubin):
    _spin(cubin, FOREVER)
    os._exit(3)


def kill_during_kernel(cubin):
    _spin(cubin, FOREVER)
    os.kill(os.getpid(), signal.SIGKILL)
