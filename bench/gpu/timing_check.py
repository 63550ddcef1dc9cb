#!/usr/bin/env python3
"""Checks on real hardware that libkcoral_timing.so times and guards as executor/timing/timing.h promises.

Usage: PYTHON bench/gpu/timing_check.py LIBRARY [NAME...]

LIBRARY is build/PRESET/lib/kcoral/libkcoral_timing.so or an installed one; `python/importable` must lie beside it, as
in a build (target kcoral_runtime_files) or an installation. Needs PyTorch, and compares with Triton's do_bench where
that is installed. No server. One line for each check: PASS, FAIL or SKIP, what it saw; the last line counts. Ends
within 60 s. NAMEs select checks.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback

DEADLINE_SECONDS = 60
QUICK = {"warmup_ms": 10, "repeat_ms": 40}
CHECKS = []


class Skip(Exception):
    pass


def check(function):
    CHECKS.append(function)
    return function


class GuardReport(ctypes.Structure):
    _fields_ = [("calls", ctypes.c_uint64), ("call", ctypes.c_char * 128), ("location", ctypes.c_char * 1024)]


class Guard:
    """The guard's C interface; `mode` is a kcoral_guard_mode."""

    def __init__(self, library):
        self.functions = ctypes.CDLL(library)
        from kcoral._timing import cupti_candidates

        self.candidates = cupti_candidates().encode()

    def watch(self, function):
        """mode, calls, the first call, its location, ms for beginning and ending"""
        began = time.perf_counter()
        mode = self.functions.kcoral_guard_begin(self.candidates, b"/nowhere", os.path.dirname(__file__).encode())
        begun = time.perf_counter()
        try:
            function()
        finally:
            ended = time.perf_counter()
            report = GuardReport()
            self.functions.kcoral_guard_end(ctypes.byref(report))
            done = time.perf_counter()
        cost_ms = ((begun - began) + (done - ended)) * 1e3
        return mode, report.calls, report.call.decode(), report.location.decode(), cost_ms


def us(report):
    return report["latency_ms_median"] * 1e3


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


# --- Kinds of work ---


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


# --- What the report says ---


@check
def exact_counts():
    a, calls = filled(1), []

    def function():
        calls.append(1)
        a.add_(1)

    report = benchmark(function, {"warmup": 3, "repeat": 7})
    assert (report["warmup"], report["repeat"], len(calls)) == (3, 7, 10), (report, len(calls))
    return "3 + 7 calls"


@check
def budgets():
    a = filled(256)
    began = time.perf_counter()
    report = benchmark(lambda: a.add_(1))
    took = time.perf_counter() - began
    assert report["repeat"] > 3 * report["warmup"] > 0 and took < 1, (report, took)
    return "warmup %d, repeat %d in %.0f ms" % (report["warmup"], report["repeat"], took * 1e3)


@check
def unstable():
    a, calls = filled(1), []

    def function():
        calls.append(1)
        a.add_(1)
        if len(calls) % 2:
            a.mul_(1)

    assert benchmark(function, QUICK)["activities_stable"] is False
    return "noticed"


@check
def l2_flush():
    a = filled(8)
    cold = benchmark(lambda: a.add_(1), QUICK)
    warm = benchmark(lambda: a.add_(1), {**QUICK, "flush_l2": False})
    assert us(warm) < us(cold) and warm["flush_l2"] is False
    return "8 MiB add: %.2f us cold (n %d), %.2f us warm (n %d)" % (us(cold), cold["repeat"], us(warm), warm["repeat"])


@check
def nothing_launched():
    try:
        benchmark(lambda: None, QUICK)
    except RuntimeError as error:
        assert "launched no GPU activity" in str(error)
        return str(error)
    raise AssertionError("no error")


@check
def exception_passes():
    a = filled(1)

    def function():
        a.add_(1)
        raise KeyError("mine")

    try:
        benchmark(function, QUICK)
    except KeyError:
        return "and afterwards %.2f us" % us(benchmark(lambda: a.add_(1), QUICK))
    raise AssertionError("no error")


@check
def many_activities():
    a = torch.zeros(1024, device="cuda")

    def function():
        for _ in range(100):
            a.add_(1)

    began = time.perf_counter()
    report = benchmark(function, {"warmup": 10, "repeat": 1000, "flush_l2": False})
    assert report["activities_stable"]
    return "1010 calls of 100 kernels in %.2f s, %.1f us a call" % (time.perf_counter() - began, us(report))


@check
def many_calls():
    a = torch.zeros(1024, device="cuda")
    began = time.perf_counter()
    report = benchmark(lambda: a.add_(1), {"warmup": 0, "repeat": 20000, "flush_l2": False})
    return "20000 calls in %.2f s, %.2f us a call" % (time.perf_counter() - began, us(report))


@check
def environment():
    a = filled(64)
    found = benchmark(lambda: a.add_(1), QUICK)["environment"]
    assert found["sm_clock_mhz_after"] and found["temperature_c"] and not found["other_cupti_client"], found
    return json.dumps(found)


@check
def overheads():
    a = torch.zeros(1024, device="cuda")

    def launch_us(calls=2000):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            a.add_(1)
        ended = time.perf_counter()
        torch.cuda.synchronize()
        return (ended - began) / calls * 1e6

    before = launch_us()
    session = _timing._Session(False)
    try:
        session._check(session._library.start(400, False, session._error, 1024))
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(400):
            session._library.mark()
        mark = (time.perf_counter() - began) / 400 * 1e6
        during = launch_us(400)
    finally:
        session.close()
    opened = time.perf_counter()
    _timing._Session(True).close()
    opened = (time.perf_counter() - opened) * 1e3
    after = launch_us()
    assert mark < 20, mark
    return "a mark %.2f us; a launch %.2f us before, %.2f during, %.2f after; open + close %.1f ms" % (
        mark, before, during, after, opened
    )  # fmt: skip


# --- The guard ---


@check
def guard_sees():
    a = torch.zeros(16, device="cuda")

    def function():
        a.add_(1)  # here

    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if text.endswith("a.add_(1)  # here\n"))
    mode, calls, call, location, _ = guard.watch(function)
    assert mode == 0 and calls > 0 and call.startswith("cu"), (mode, calls, call)
    assert location.endswith("%s:%d" % (os.path.basename(__file__), line)), location
    return "%d calls, %s at %s" % (calls, call, os.path.basename(location))


@check
def guard_sees_threads():
    a = torch.zeros(16, device="cuda")

    def function():
        thread = threading.Thread(target=lambda: a.add_(1))
        thread.start()
        thread.join()

    _, calls, call, location, _ = guard.watch(function)
    assert calls > 0 and os.path.basename(__file__) in location, (calls, location)
    return "%s at %s" % (call, os.path.basename(location))


@check
def guard_is_quiet():
    _, calls, call, location, _ = guard.watch(lambda: [torch.ones(100).sum().item() for _ in range(100)])
    assert calls == 0, (call, location)
    costs = sorted([guard.watch(lambda: None)[4] for _ in range(200)])
    assert costs[100] < 1, costs[100]
    return "nothing for PyTorch on the CPU; begin + end %.3f ms (max %.3f)" % (costs[100], costs[-1])


@check
def guard_then_timing():
    a = torch.zeros(1024, device="cuda")
    guard.watch(lambda: None)
    return "%.2f us" % us(benchmark(lambda: a.add_(1), QUICK))


# --- Other users of CUPTI: these come last, since traces of them stay ---


@check
def profiler_active():
    a = filled(1)
    refused = None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        a.add_(1)
        try:
            benchmark(lambda: a.add_(1), QUICK)
        except Unavailable as error:
            refused = str(error)
        mode, calls, _, _, _ = guard.watch(lambda: a.add_(1))
        torch.cuda.synchronize()
    assert refused and len(profile.events()) > 0
    events = len(profile.events())
    return "%s; the profiler saw %d events; guard mode %d, %d calls" % (refused[:60], events, mode, calls)


@check
def profiler_before():
    a = torch.zeros(1024, device="cuda")
    report = benchmark(lambda: a.add_(1), QUICK)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        a.add_(1)
        torch.cuda.synchronize()
    again = benchmark(lambda: a.add_(1), QUICK)
    mode = guard.watch(lambda: None)[0]
    assert len(profile.events()) > 0
    return "%.2f us, flagged: %s; after another profile (%d events) %.2f us; guard mode %d" % (
        us(report), report["environment"]["other_cupti_client"], len(profile.events()), us(again), mode
    )  # fmt: skip


# --- Processes of their own ---


def child(source, timeout=20, command=(), **environment):
    head = "import sys, time, json, os, ctypes\nsys.path[:0] = [%r, %r]\nimport timing_check as t\nt.set_up(%r)\n" % (
        IMPORTABLE, os.path.dirname(os.path.abspath(__file__)), LIBRARY
    )  # fmt: skip
    done = subprocess.run(
        [*command, sys.executable, "-c", head + source],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
    )
    lines = [line for line in done.stdout.strip().split("\n") if not line.startswith("==")]
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-600:])
    return lines[-1]


@check
def without_torch():
    """Also without a context: the primary one is made and given back."""
    return child(
        """
cuda = ctypes.CDLL("libcuda.so.1")
address = ctypes.c_uint64()
def function():
    global address
    if not address.value:
        assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 26)) == 0
    assert cuda.cuMemsetD8Async(address, ctypes.c_ubyte(1), ctypes.c_size_t(1 << 26), None) == 0
began = time.perf_counter()
report = t.benchmark(function, t.QUICK)
assert "torch" not in sys.modules
context = ctypes.c_void_p(1)
assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0 and not context.value
maps = open("/proc/self/maps").read()
path = [line.split()[-1] for line in maps.splitlines() if "libcupti" in line][0]
print("64 MiB memset %.1f us, all of it %.0f ms, with %s" % (t.us(report), (time.perf_counter() - began) * 1e3, path))
"""
    )


@check
def guard_before_cuda():
    """PyTorch is imported, and CUDA is not initialised yet."""
    return child(
        """
import torch
def loaded(): return "libcuda.so.1" in open("/proc/self/maps").read()
before = loaded()
quiet = t.guard.watch(lambda: None)
cuda = ctypes.CDLL("libcuda.so.1")
uninitialised = cuda.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())) == 3
second = t.guard.watch(lambda: None)
def function():
    torch.zeros(1, device="cuda")
seen = t.guard.watch(function)
assert quiet[1] == 0 and uninitialised and seen[1] > 0 and seen[2], (quiet, uninitialised, seen)
print("libcuda loaded before: %s; first guard mode %d, %.2f ms, then %.3f ms; CUDA initialised by it: %s; then %s at %s"
      % (before, quiet[0], quiet[4], second[4], not uninitialised, seen[2], seen[3]))
"""
    )


@check
def guard_without_anything():
    """Neither CUDA nor CUPTI is in the process: cheap, and the first use of CUDA is still seen."""
    return child(
        """
quiet = t.guard.watch(lambda: None)
assert "libcuda" not in open("/proc/self/maps").read() and "libcupti" not in open("/proc/self/maps").read()
seen = t.guard.watch(lambda: ctypes.CDLL("libcuda.so.1").cuInit(0))
assert quiet[0] == 1 and quiet[1] == 0 and seen[1] == 1 and seen[2] == "cuInit", (quiet, seen)
after = t.guard.watch(lambda: ctypes.CDLL("libcuda.so.1").cuCtxSynchronize())
print("mode %d, %.3f ms; saw %s, %s; afterwards mode %d, saw %s"
      % (quiet[0], quiet[4], seen[2], seen[3], after[0], after[2]))
"""
    )


@check
def cuda_error():
    return child(
        """
import torch
a = torch.zeros(4, device="cuda")
index = torch.tensor([9], device="cuda")
kind = None
try:
    t.benchmark(lambda: a[index], t.QUICK)
except RuntimeError as error:
    kind = "%s: %s" % (type(error).__name__, str(error).split("\\n")[0][:150])
assert kind and "CUDA" in kind, kind
print(kind, flush=True)
os._exit(0)  # destructors meet the broken context
"""
    )


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
    print("no error: %s" % t.benchmark(lambda: a.add_(1), {"warmup": 0, "repeat": 2}))
except t.Unavailable as error:
    print(str(error)[:150])
""",
        command=(ncu, "--clock-control", "none", "--launch-count", "1"),
    )


def set_up(library):
    """Makes `benchmark`, `Unavailable`, `_timing` and `guard` names of this module."""
    global LIBRARY, IMPORTABLE, benchmark, Unavailable, _timing, guard
    LIBRARY = os.path.abspath(library)
    IMPORTABLE = os.path.join(os.path.dirname(LIBRARY), "python", "importable")
    sys.path.insert(0, IMPORTABLE)
    from kcoral import _timing
    from kcoral.builtins import Unavailable, benchmark

    assert os.path.samefile(_timing.library_path(), LIBRARY), _timing.library_path()
    guard = Guard(LIBRARY)


def out_of_time(*_):
    raise TimeoutError("the time is over")


def main():
    global torch
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    set_up(sys.argv[1])
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(DEADLINE_SECONDS)
    import torch

    chosen = [each for each in CHECKS if not sys.argv[2:] or each.__name__ in sys.argv[2:]]
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    for each in chosen:
        try:
            verdict, line = "PASS", each()
        except Skip as reason:
            verdict, line = "SKIP", str(reason)
        except TimeoutError as error:
            verdict, line = "FAIL", str(error)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            verdict, line = "FAIL", "line %d: %s: %s" % (place.lineno, type(error).__name__, str(error)[:700])
        counts[verdict] += 1
        print("%s %-22s %s" % (verdict, each.__name__, line), flush=True)
        if line == "the time is over":
            break
    print("%(PASS)d passed, %(FAIL)d failed, %(SKIP)d skipped" % counts)
    sys.exit(1 if counts["FAIL"] or not counts["PASS"] else 0)


if __name__ == "__main__":
    main()
