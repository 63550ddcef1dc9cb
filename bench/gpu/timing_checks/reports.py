"""What a report says: counts, budgets, flags, the environment; what measuring costs; and errors."""

from __future__ import annotations

import json
import time

import torch
from kcoral import _timing
from kcoral.builtins import benchmark
from timing_checks.comparisons import filled
from timing_checks.subject import QUICK, check, us


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
