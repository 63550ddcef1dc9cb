"""Functions for cpu_only runs, that behave or do not, and what goes before and after them."""

import ctypes
import time

import torch
from driver import Kernels

_cuda = ctypes.CDLL("libcuda.so.1")


def start():
    """Leaves a tensor on the device, whose value must survive."""
    return torch.arange(1024, dtype=torch.float32, device="cuda")


def start_and_keep_busy(cubin, ns):
    """Returns while the device has work for `ns`."""
    tensor = start()
    Kernels(cubin).launcher("spin", ctypes.c_longlong)(1, 1, ns)
    return tensor


def rest(seconds):
    """Behaves: the CPU alone."""
    product = torch.ones(64, 64) @ torch.ones(64, 64)
    time.sleep(seconds)
    return float(product[0, 0])


def total(tensor):
    return float((tensor + 1).sum().item())


def hold(seconds):
    """Holds the lease."""
    tensor = torch.ones(1024, device="cuda")
    time.sleep(seconds)
    return float(tensor.sum().item())


def through_pytorch(seconds):
    time.sleep(seconds)
    return torch.ones(16, device="cuda")


def through_the_driver(seconds):
    memory = ctypes.c_uint64()
    code = _cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20))
    return "code %d" % code


def swallowed(seconds):
    try:
        torch.ones(16, device="cuda")
    except BaseException:
        pass
    return "nothing happened"
