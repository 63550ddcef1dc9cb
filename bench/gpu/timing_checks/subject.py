"""The library under test. Nothing here imports PyTorch, which some checks do without."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

QUICK = {"warmup_ms": 10, "repeat_ms": 40}
CHECKS: list[Callable[[], str]] = []  # in the order in which they run

_library = ""
_DIRECTORY = os.path.dirname(os.path.abspath(__file__))


class Skip(Exception):
    """What a check needs is not here; the message says what."""


def check(function: Callable[[], str]) -> Callable[[], str]:
    """Makes it one of CHECKS: it returns what it saw, or raises."""
    CHECKS.append(function)
    return function


def set_up(path: str) -> None:
    """Makes `kcoral` importable as it lies beside the library at `path`. Comes before the import of any check."""
    global _library
    _library = os.path.abspath(path)
    sys.path.insert(0, os.path.join(os.path.dirname(_library), "python", "importable"))
    from kcoral import _timing

    assert os.path.samefile(_timing.library_path(), _library), _timing.library_path()


def library() -> str:
    """Where it is. Requires: `set_up` was called."""
    return _library


def us(report):
    return report["latency_ms_median"] * 1e3


class _GuardReport(ctypes.Structure):
    """struct kcoral_guard_report"""

    _fields_ = [("calls", ctypes.c_uint64), ("call", ctypes.c_char * 128), ("location", ctypes.c_char * 1024)]


def watch(function):
    """Calls `function` under the guard: its mode (a kcoral_guard_mode), how many CUDA calls it saw, the first of them,
    where that was made, and the ms that beginning and ending took."""
    from kcoral._timing import cupti_candidates

    functions = ctypes.CDLL(_library)
    begin, end = functions.kcoral_guard_begin, functions.kcoral_guard_end
    candidates = cupti_candidates().encode()
    began = time.perf_counter()
    mode = begin(candidates, b"/nowhere", _DIRECTORY.encode())
    begun = time.perf_counter()
    try:
        function()
    finally:
        ended = time.perf_counter()
        report = _GuardReport()
        end(ctypes.byref(report))
        done = time.perf_counter()
    cost_ms = ((begun - began) + (done - ended)) * 1e3
    return mode, report.calls, report.call.decode(), report.location.decode(), cost_ms
