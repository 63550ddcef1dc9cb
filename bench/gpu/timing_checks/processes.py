"""What needs a process of its own: one without PyTorch, without CUDA, with a broken context, or under a profiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from timing_checks import subject
from timing_checks.subject import Skip, check

_HEAD = """
import ctypes, json, os, sys, time
sys.path.insert(0, %r)
from timing_checks.subject import QUICK, set_up, us, watch
set_up(%r)
from kcoral.builtins import Unavailable, benchmark
"""


def child(source, timeout=20, command=()):
    """The last line that a Python prints that runs `source`."""
    head = _HEAD % (str(Path(__file__).resolve().parents[1]), subject.library())
    done = subprocess.run(
        [*command, sys.executable, "-c", head + source],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    lines = [line for line in done.stdout.strip().split("\n") if not line.startswith("==")]
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-600:])
    return lines[-1]


@check
def without_torch():
    """Also without a context: the primary one is made and given back."""
    return child("""
cuda = ctypes.CDLL("libcuda.so.1")
address = ctypes.c_uint64()
def function():
    global address
    if not address.value:
        assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 26)) == 0
    assert cuda.cuMemsetD8Async(address, ctypes.c_ubyte(1), ctypes.c_size_t(1 << 26), None) == 0
began = time.perf_counter()
report = benchmark(function, QUICK)
assert "torch" not in sys.modules
context = ctypes.c_void_p(1)
assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0 and not context.value
maps = open("/proc/self/maps").read()
path = [line.split()[-1] for line in maps.splitlines() if "libcupti" in line][0]
print("64 MiB memset %.1f us, all of it %.0f ms, with %s" % (us(report), (time.perf_counter() - began) * 1e3, path))
""")


@check
def guard_before_cuda():
    """PyTorch is imported, and CUDA is not initialised yet."""
    return child("""
import torch
def loaded(): return "libcuda.so.1" in open("/proc/self/maps").read()
before = loaded()
quiet = watch(lambda: None)
cuda = ctypes.CDLL("libcuda.so.1")
uninitialised = cuda.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())) == 3
second = watch(lambda: None)
def function():
    torch.zeros(1, device="cuda")
seen = watch(function)
assert quiet[1] == 0 and uninitialised and seen[1] > 0 and seen[2], (quiet, uninitialised, seen)
print("libcuda loaded before: %s; first guard mode %d, %.2f ms, then %.3f ms; CUDA initialised by it: %s; then %s at %s"
      % (before, quiet[0], quiet[4], second[4], not uninitialised, seen[2], seen[3]))
""")


@check
def guard_without_anything():
    """Neither CUDA nor CUPTI is in the process: cheap, and the first use of CUDA is still seen."""
    return child("""
quiet = watch(lambda: None)
assert "libcuda" not in open("/proc/self/maps").read() and "libcupti" not in open("/proc/self/maps").read()
seen = watch(lambda: ctypes.CDLL("libcuda.so.1").cuInit(0))
assert quiet[0] == 1 and quiet[1] == 0 and seen[1] == 1 and seen[2] == "cuInit", (quiet, seen)
after = watch(lambda: ctypes.CDLL("libcuda.so.1").cuCtxSynchronize())
print("mode %d, %.3f ms; saw %s, %s; afterwards mode %d, saw %s"
      % (quiet[0], quiet[4], seen[2], seen[3], after[0], after[2]))
""")


@check
def cuda_error():
    return child("""
import torch
a = torch.zeros(4, device="cuda")
index = torch.tensor([9], device="cuda")
kind = None
try:
    benchmark(lambda: a[index], QUICK)
except RuntimeError as error:
    kind = "%s: %s" % (type(error).__name__, str(error).split("\\n")[0][:150])
assert kind and "CUDA" in kind, kind
print(kind, flush=True)
os._exit(0)  # destructors meet the broken context
""")


@check
def under_ncu():
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not os.path.exists(ncu):
        raise Skip("no ncu")
    return child(
        """
import torch
a = torch.zeros(4, device="cuda")
try:
    print("no error: %s" % benchmark(lambda: a.add_(1), {"warmup": 0, "repeat": 2}))
except Unavailable as error:
    print(str(error)[:150])
""",
        command=(ncu, "--clock-control", "none", "--launch-count", "1"),
    )
