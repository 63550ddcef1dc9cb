"""Times of the library beside those of others."""

from __future__ import annotations

import torch
from kcoral.builtins import benchmark
from timing_checks.subject import QUICK, us


def near(seen, expected, tolerance):
    assert abs(seen - expected) <= tolerance * expected, "%.2f is not within %d %% of %.2f" % (
        seen,
        tolerance * 100,
        expected,
    )


def do_bench_us(function):
    try:
        from triton.testing import do_bench
    except ImportError:
        return None
    return do_bench(function, warmup=10, rep=40, return_mode="median") * 1e3


def events_us(function, calls=50):
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
    for first, last in pairs:
        first.record()
        function()
        last.record()
    torch.cuda.synchronize()
    return sorted([first.elapsed_time(last) * 1e3 for first, last in pairs])[calls // 2]


def compared(function, tolerance=None):
    report = benchmark(function, QUICK)
    assert report["activities_stable"], report
    other = do_bench_us(function)
    if tolerance is not None and other is not None:
        near(us(report), other, tolerance)
    line = "%.2f us (min %.2f, max %.2f, n %d)" % (
        us(report), report["latency_ms_min"] * 1e3, report["latency_ms_max"] * 1e3, report["repeat"]
    )  # fmt: skip
    return report, line + "; do_bench %s, events %.1f" % ("-" if other is None else "%.1f" % other, events_us(function))


def filled(mebibytes, dtype="float32"):
    dtype = getattr(torch, dtype)
    return torch.zeros((mebibytes << 20) // dtype.itemsize, dtype=dtype, device="cuda")
