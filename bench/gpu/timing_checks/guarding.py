"""The guard of `cpu_only` runs."""

from __future__ import annotations

import os
import threading

import torch
from kcoral.builtins import benchmark
from timing_checks.subject import QUICK, check, us, watch


@check
def guard_sees():
    a = torch.zeros(16, device="cuda")

    def function():
        a.add_(1)  # here

    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if text.endswith("a.add_(1)  # here\n"))
    mode, calls, call, location, _ = watch(function)
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

    _, calls, call, location, _ = watch(function)
    assert calls > 0 and os.path.basename(__file__) in location, (calls, location)
    return "%s at %s" % (call, os.path.basename(location))


@check
def guard_is_quiet():
    _, calls, call, location, _ = watch(lambda: [torch.ones(100).sum().item() for _ in range(100)])
    assert calls == 0, (call, location)
    costs = sorted([watch(lambda: None)[4] for _ in range(200)])
    assert costs[100] < 1, costs[100]
    return "nothing for PyTorch on the CPU; begin + end %.3f ms (max %.3f)" % (costs[100], costs[-1])


@check
def guard_then_timing():
    a = torch.zeros(1024, device="cuda")
    watch(lambda: None)
    return "%.2f us" % us(benchmark(lambda: a.add_(1), QUICK))
