"""Ten kernels from 2 us to 10 ms, timed by kcoral.builtins.benchmark.

The same file runs as a program of the service and in the plain process that it is compared with (plain.py).

Where the driver places a process's memory on the device is decided anew for each process, and decides up to 8 % of a
kernel that touches 2 MiB and 1 % of one that touches 512 MiB (H200; within a process such a kernel varies by 0.02 %).
So those that memory bounds have several places, which they take in turns, and the smallest touch pieces of much memory.
The hottest are timed briefly and after a rest, since the power limit lowers their clocks by 10 % after some 20 ms.
"""

import ctypes
import itertools
import os
import time

# Beside the program, so that what was compiled once can be uploaded.
os.environ["TRITON_CACHE_DIR"] = os.path.join(os.getcwd(), "triton")

import torch
import triton
import triton.language as tl
from driver import Kernels
from kcoral.builtins import benchmark


@triton.jit
def scale_and_add(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, 2.0 * tl.load(x + offsets, mask=mask) + 1.0, mask=mask)


def _float32(*shape):
    return torch.randn(*shape, device="cuda")


def _in_turns(places, make, *arguments):
    """One of so many functions that `make` made, each with memory of its own."""
    functions = itertools.cycle([make(*arguments) for _ in range(places)])
    return lambda: next(functions)()


def _pieces(rows, columns):
    """A matrix whose rows lie far apart."""
    return _float32(rows, SPREAD * columns)[:, :columns]


def _copy(n):
    x, y = _float32(n), _float32(n)
    return lambda: y.copy_(x)


def _copy_pieces(rows, columns):
    x, y = _pieces(rows, columns), _pieces(rows, columns)
    return lambda: y.copy_(x)


def _add_pieces(rows, columns):
    x, y = _pieces(rows, columns), _pieces(rows, columns)
    return lambda: torch.add(x, 1.0, out=y)


def _softmax(rows, columns):
    x, y = _float32(rows, columns), _float32(rows, columns)
    return lambda: torch.softmax(x, 1, out=y)


def _product(n, dtype, tf32=False):
    a, b = _float32(n, n).to(dtype), _float32(n, n).to(dtype)
    out = torch.empty_like(a)

    def product():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.mm(a, b, out=out)

    return product


def _several_kernels(rows, width):
    x, weight = _float32(rows, width).bfloat16(), _float32(width, width).bfloat16()

    def block():
        y = torch.nn.functional.layer_norm(x, (width,))
        return x + torch.nn.functional.gelu(y @ weight)

    return block


def _triton(n):
    x, y = _float32(n), _float32(n)
    grid = (triton.cdiv(n, 1024),)
    return lambda: scale_and_add[grid](x, y, n, BLOCK=1024, num_warps=4)


def _cuda_c(n, cubin):
    x, y = _float32(n), _float32(n)
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_longlong)
    launch = Kernels(cubin).launcher("saxpy", *types)
    return lambda: launch((n + 255) // 256, 256, y.data_ptr(), x.data_ptr(), 0.5, n)


SPREAD = 16
REST_SECONDS = 0.05
SHORT = {"warmup": 20, "repeat": 150}
HOT = {"warmup": 5, "repeat": 40}
LONG = {"warmup": 3, "repeat": 10}


def kernels(cubin):
    """By name: what makes the function that is timed, and how often that is called."""
    return {
        "add 1 MiB": (lambda: _in_turns(16, _add_pieces, 256, 1024), SHORT),
        "copy 4 MiB": (lambda: _in_turns(16, _copy_pieces, 512, 2048), SHORT),
        "softmax 4096x4096": (lambda: _in_turns(8, _softmax, 4096, 4096), SHORT),
        "several kernels": (lambda: _in_turns(8, _several_kernels, 8192, 1024), SHORT),
        "Triton 64 MiB": (lambda: _in_turns(8, _triton, 1 << 24), SHORT),
        "copy 256 MiB": (lambda: _in_turns(4, _copy, 1 << 26), SHORT),
        "CUDA C 256 MiB": (lambda: _in_turns(4, _cuda_c, 1 << 26, cubin), SHORT),
        "GEMM 4096 bf16": (lambda: _product(4096, torch.bfloat16), HOT),
        "GEMM 4096 tf32": (lambda: _product(4096, torch.float32, tf32=True), HOT),
        "GEMM 6144 f32": (lambda: _product(6144, torch.float32), LONG),
    }


def compile_once(cubin):
    """Leaves what Triton compiles in the working directory."""
    _triton(1 << 20)()
    torch.cuda.synchronize()
    return "triton"


def measure(cubin, rounds, samples, names=None):
    """For each kernel, or those of `names`, the medians of `rounds` benchmarks, and `samples` benchmarks of a single
    call; milliseconds. Requires: "GEMM 4096 bf16" is among them, with which it warms up."""
    torch.manual_seed(0)
    timed = {name: (make(), config) for name, (make, config) in kernels(cubin).items() if not names or name in names}
    _warm_up(timed["GEMM 4096 bf16"][0])
    found = {name: {"medians": [], "samples": [], "stable": True, "environments": []} for name in timed}
    for _ in range(rounds):
        for name, (fn, config) in timed.items():
            if config is HOT:
                time.sleep(REST_SECONDS)
            report = benchmark(fn, config)
            found[name]["medians"].append(report["latency_ms_median"])
            found[name]["stable"] &= report["activities_stable"]
            found[name]["environments"].append(report.get("environment"))
    for name, (fn, _) in timed.items():
        for _ in range(samples):
            found[name]["samples"].append(benchmark(fn, {"warmup": 1, "repeat": 1})["latency_ms_median"])
    return found


def _warm_up(fn):
    """Until the clocks are up."""
    begin = time.monotonic()
    while time.monotonic() - begin < 0.15:
        for _ in range(20):
            fn()
        torch.cuda.synchronize()
