"""Kinds of work, on every kind of stream, with the times that they must have."""

from __future__ import annotations

import ctypes
import threading

import torch
from kcoral import _timing
from kcoral.builtins import benchmark
from timing_checks.comparisons import compared, filled, near
from timing_checks.subject import QUICK, check, us


@check
def add_4k():
    a, out = torch.ones(1024, device="cuda"), torch.empty(1024, device="cuda")
    report, line = compared(lambda: torch.add(a, 1, out=out))
    assert 0.3 < us(report) < 5, line
    return line


@check
def copy_256m():
    source, target = filled(256), filled(256)
    report, line = compared(lambda: target.copy_(source), 0.2)
    return line + "; %.2f TB/s" % (2 * 256 * 2**20 / us(report) / 1e6)


@check
def gemm_bf16():
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return compared(lambda: torch.mm(a, b, out=out), 0.35)[1]


@check
def several_kernels():
    a = filled(64)

    def one():
        a.add_(1)

    def three():
        a.add_(1)
        a.mul_(2)
        a.add_(3)

    single = us(benchmark(one, QUICK))
    report, line = compared(three, 0.3)
    assert us(report) > 1.5 * single, "%.1f for one, %s" % (single, line)
    return line


@check
def cuda_graph():
    a = filled(64)

    def eager():
        for _ in range(5):
            a.add_(1)

    eager()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    plain = us(benchmark(eager, QUICK))
    report, line = compared(graph.replay, 0.3)
    near(us(report), plain, 0.3)
    return line + "; eager %.1f" % plain


@check
def ordered():
    """Work on the default stream waits for its flush, and the next flush for it: by the times of the records, too."""
    small, large = filled(1), filled(64)

    def function():
        small.add_(1)
        large.add_(1)

    session = _timing._Session(True)
    try:
        series, _ = session._run(function, (), 500, 0)
    finally:
        session.close()
    assert series.overlapping == 0, "%d of 500 overlapped" % series.overlapping
    return "500 calls, %d activities" % series.activities


@check
def side_stream():
    """A stream that waits for nothing: noticed, and synchronised with."""
    a = filled(64)
    stream = torch.cuda.Stream()

    def beside():
        with torch.cuda.stream(stream):
            a.add_(1)

    plain = us(benchmark(lambda: a.add_(1), QUICK))
    session = _timing._Session(True)
    try:
        series, _ = session._run(beside, (), 20, 0)
        synchronised, _ = session.run(beside, (), 20, 0)
    finally:
        session.close()
    assert series.overlapping > 0 and synchronised.overlapping == 0, (series.overlapping, synchronised.overlapping)
    report = benchmark(beside, QUICK)
    near(us(report), plain, 0.15)
    return "%.1f us, default stream %.1f; %d of 20 overlapped" % (us(report), plain, series.overlapping)


@check
def current_stream():
    a = filled(64)
    plain = us(benchmark(lambda: a.add_(1), QUICK))
    with torch.cuda.stream(torch.cuda.Stream()):
        session = _timing._Session(True)
        try:
            series, _ = session._run(lambda: a.add_(1), (), 20, 0)
        finally:
            session.close()
        report = benchmark(lambda: a.add_(1), QUICK)
    near(us(report), plain, 0.15)
    assert series.overlapping == 0, series.overlapping
    return "%.1f us, default stream %.1f" % (us(report), plain)


@check
def from_a_thread():
    a = filled(64)

    def threaded():
        thread = threading.Thread(target=lambda: a.add_(1))
        thread.start()
        thread.join()

    plain = us(benchmark(lambda: a.add_(1), QUICK))
    report = benchmark(threaded, QUICK)
    near(us(report), plain, 0.15)
    return "%.1f us, from this thread %.1f" % (us(report), plain)


@check
def synchronising():
    a = filled(64)
    plain = us(benchmark(lambda: a.add_(1), QUICK))

    def function():
        a.add_(1)
        torch.cuda.synchronize()

    report = benchmark(function, QUICK)
    near(us(report), plain, 0.15)
    return "%.1f us, without %.1f" % (us(report), plain)


@check
def copies_and_memsets():
    host, device = torch.zeros(1 << 20, pin_memory=True), torch.zeros(1 << 20, device="cuda")
    to = benchmark(lambda: device.copy_(host, non_blocking=True), QUICK)
    back = benchmark(lambda: host.copy_(device, non_blocking=True), QUICK)
    cuda = ctypes.CDLL("libcuda.so.1")
    address = ctypes.c_uint64(device.data_ptr())
    sets = benchmark(lambda: cuda.cuMemsetD8Async(address, ctypes.c_ubyte(0), ctypes.c_size_t(1 << 22), None), QUICK)
    assert us(to) > 20 and us(back) > 20 and us(sets) > 0.5
    return "4 MiB in %.1f us, out %.1f us, memset %.2f us" % (us(to), us(back), us(sets))
