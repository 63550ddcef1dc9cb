"""How long GPU work takes: what `kcoral.builtins.benchmark` does, by libkcoral_timing.so (executor/timing/timing.h).

Theory of operation. A session prepares CUPTI; then calls are made in series, with a mark (which is the L2 flush) before
each. A short series tells how long one iteration takes, which makes counts of the time budgets; one long series is the
warm-up and the samples. Should a series show that the measured work does not wait for the flush (it runs on a stream
of its own that waits for nothing), it is made again with the GPU synchronised around each flush.

PyTorch is not needed. Where it is loaded, marks go to its current stream, and its profiler is asked whether it runs.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from math import fsum
from typing import Any, Callable, Optional, Sequence

LIBRARY = "libkcoral_timing.so"

_ESTIMATE_CALLS = 5
_ESTIMATE_LONG_NS = 10_000_000  # a call that takes longer is estimated by itself
_BUDGET_CALLS_MAX = 10_000  # from a time budget; explicit counts may be larger
_ERROR_BYTES = 1024
_OK, _UNAVAILABLE, _OTHER_CLIENT, _CUDA_ERROR, _MISUSE, _RECORDS_LOST = range(6)
_DEFAULTS = {"warmup_ms": 25, "repeat_ms": 100, "flush_l2": True, "warmup": None, "repeat": None}

# NVML's bits. That an idle GPU has lower clocks is left out: it says nothing about the work.
_CLOCK_EVENT_REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class MeasurementUnavailable(RuntimeError):
    """The environment does not allow to measure; the message says what is missing or in the way."""


class _Config(ctypes.Structure):
    _fields_ = [
        ("cupti_candidates", c_char_p),
        ("stream", c_uint64),
        ("flush_l2", c_uint32),
        ("others_are_idle", c_uint32),
    ]


class _Facts(ctypes.Structure):
    _fields_ = [
        ("flush_bytes", c_uint64),
        ("other_client", c_uint32),
        ("cupti_version", c_uint32),
        ("pci_bus_id", c_char * 32),
    ]


class _Series(ctypes.Structure):
    _fields_ = [
        ("calls", c_uint32),
        ("empty", c_uint32),
        ("stable", c_uint32),
        ("overlapping", c_uint32),
        ("activities", c_uint64),
        ("elapsed_ns", c_uint64),
    ]


class _DeviceFacts(ctypes.Structure):
    _fields_ = [
        ("sm_clock_mhz", c_int32),
        ("temperature_c", c_int32),
        ("processes", c_int32),
        ("has_clock_event_reasons", c_int32),
        ("clock_event_reasons", c_uint64),
    ]


class _Library:
    """The functions of libkcoral_timing.so."""

    def __init__(self, path: str) -> None:
        functions = ctypes.CDLL(path)
        self.open = functions.kcoral_timing_open
        self.open.argtypes = [c_void_p, c_void_p, c_char_p, c_size_t]
        self.start = functions.kcoral_timing_start
        self.start.argtypes = [c_uint32, c_uint32, c_char_p, c_size_t]
        self.mark = functions.kcoral_timing_mark
        self.mark.argtypes = []
        self.finish = functions.kcoral_timing_finish
        self.finish.argtypes = [c_uint32, c_void_p, c_void_p, c_size_t, c_char_p, c_size_t]
        self.close = functions.kcoral_timing_close
        self.close.argtypes = []
        self.close.restype = None
        self.device_state = functions.kcoral_device_state
        self.device_state.argtypes = [c_char_p, c_void_p]
        self.device_state.restype = None


_library: Optional[_Library] = None


def library_path() -> str:
    """Beside the directory `python` in which this package lies, in a slot, an installation and a build tree alike."""
    directory = os.path.abspath(__file__)
    for _ in range(4):
        directory = os.path.dirname(directory)
    return os.path.join(directory, LIBRARY)


def cupti_candidates() -> str:
    """Where CUPTI may lie, one a line: in the wheel that PyTorch brings along, where libraries are looked for, and in
    the CUDA toolkit. Nothing is imported to find out."""
    candidates = []
    for path in sys.path:
        for below in ("cu13/lib/libcupti.so.13", "cuda_cupti/lib/libcupti.so.13", "cuda_cupti/lib/libcupti.so.12"):
            candidates.append(os.path.join(path, "nvidia", below))
    candidates = [candidate for candidate in candidates if os.path.exists(candidate)]
    names = ("libcupti.so.13", "libcupti.so.12")
    candidates.extend(names)
    toolkit = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    for below in ("lib64", "extras/CUPTI/lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
        candidates.extend([os.path.join(toolkit, below, name) for name in names])
    return "\n".join([candidate for candidate in candidates if "\n" not in candidate])


def measure(fn: Callable[..., Any], args: Sequence[Any], config: dict[str, Any]) -> dict[str, Any]:
    """The report of `benchmark`. Requires: `config` was checked."""
    settings = {**_DEFAULTS, **config}
    session = _Session(settings["flush_l2"])
    try:
        return _measure(session, fn, args, settings)
    finally:
        session.close()


def _measure(
    session: "_Session", fn: Callable[..., Any], args: Sequence[Any], settings: dict[str, Any]
) -> dict[str, Any]:
    warmup, repeat = settings["warmup"], settings["repeat"]
    if warmup is None or repeat is None:
        iteration_ns = _estimate(session, fn, args)
        if warmup is None:
            warmup = _count(settings["warmup_ms"], iteration_ns)
        if repeat is None:
            repeat = max(1, _count(settings["repeat_ms"], iteration_ns))
    before = session.device_state()
    series, spans_ns = session.run(fn, args, warmup + repeat, warmup)
    after = session.device_state()
    samples_ms = sorted([span / 1e6 for span in spans_ns])
    middle = len(samples_ms) // 2
    return {
        "latency_ms_median": (samples_ms[middle] + samples_ms[~middle]) / 2,
        "latency_ms_mean": fsum(samples_ms) / len(samples_ms),
        "latency_ms_min": samples_ms[0],
        "latency_ms_max": samples_ms[-1],
        "warmup": warmup,
        "repeat": repeat,
        "flush_l2": settings["flush_l2"],
        "activities_stable": bool(series.stable),
        "environment": {**_environment(before, after), "other_cupti_client": session.other_client},
    }


def _estimate(session: "_Session", fn: Callable[..., Any], args: Sequence[Any]) -> int:
    """How long one whole iteration takes, its flush included. The first call loads what is loaded at first use."""
    session.run(fn, args, 1, 0)
    series, _ = session.run(fn, args, 1, 0)
    if series.elapsed_ns < _ESTIMATE_LONG_NS:
        series, _ = session.run(fn, args, _ESTIMATE_CALLS, 0)
    return max(1, series.elapsed_ns // series.calls)


def _count(budget_ms: float, iteration_ns: int) -> int:
    """Calls that fit into a budget; at least one into any that is not empty."""
    if budget_ms == 0:
        return 0
    return int(min(_BUDGET_CALLS_MAX, max(1, budget_ms * 1e6 / iteration_ns)))


class _Session:
    """CUPTI prepared, from here to `close`."""

    def __init__(self, flush_l2: bool) -> None:
        global _library
        if _library is None:
            try:
                _library = _Library(library_path())
            except OSError as error:
                message = "benchmark: the library that times GPU work cannot be loaded: %s" % error
                raise MeasurementUnavailable(message) from None
        self._library = _library
        self._error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._facts = _Facts()
        self._synchronise = False
        config = _Config(cupti_candidates().encode(), _current_stream(), flush_l2, _others_are_idle())
        self._check(self._library.open(byref(config), byref(self._facts), self._error, _ERROR_BYTES))

    @property
    def other_client(self) -> bool:
        return bool(self._facts.other_client)

    def close(self) -> None:
        self._library.close()

    def run(self, fn: Callable[..., Any], args: Sequence[Any], calls: int, skip: int) -> tuple[_Series, Sequence[int]]:
        """Calls `fn` that often, and says what all calls but the first `skip` did."""
        series, spans_ns = self._run(fn, args, calls, skip)
        if series.overlapping and not self._synchronise:
            self._synchronise = True
            series, spans_ns = self._run(fn, args, calls, skip)
        if series.empty:
            which = "the function" if series.empty == calls - skip else "%d of %d calls" % (series.empty, calls - skip)
            raise RuntimeError("benchmark: %s launched no GPU activity (no kernel, copy or memset)" % which)
        return series, spans_ns

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], calls: int, skip: int) -> tuple[_Series, Sequence[int]]:
        mark = self._library.mark
        self._check(self._library.start(calls, self._synchronise, self._error, _ERROR_BYTES))
        for _ in range(calls):
            if mark():
                break
            fn(*args)
        series = _Series()
        spans_ns = (c_uint64 * (calls - skip))()
        self._check(self._library.finish(skip, byref(series), spans_ns, calls - skip, self._error, _ERROR_BYTES))
        return series, spans_ns

    def device_state(self) -> _DeviceFacts:
        facts = _DeviceFacts()
        self._library.device_state(self._facts.pci_bus_id, byref(facts))
        return facts

    def _check(self, status: int) -> None:
        if status == _OK:
            return
        message = "benchmark: " + self._error.value.decode("utf-8", "replace")
        if status in (_UNAVAILABLE, _OTHER_CLIENT, _RECORDS_LOST):
            raise MeasurementUnavailable(message)
        raise RuntimeError(message)


def _environment(before: _DeviceFacts, after: _DeviceFacts) -> dict[str, Any]:
    reasons: Optional[list[str]] = None
    if before.has_clock_event_reasons and after.has_clock_event_reasons:
        seen = before.clock_event_reasons | after.clock_event_reasons
        reasons = [name for bit, name in _CLOCK_EVENT_REASONS.items() if seen & bit]
    return {
        "sm_clock_mhz_before": _known(before.sm_clock_mhz),
        "sm_clock_mhz_after": _known(after.sm_clock_mhz),
        "clock_event_reasons": reasons,
        "temperature_c": _known(after.temperature_c),
        # This process is one; NVML that shows none cannot see them from here.
        "other_processes": after.processes - 1 if after.processes > 0 else None,
    }


def _known(value: int) -> Optional[int]:
    return value if value >= 0 else None


def _current_stream() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return torch.cuda.current_stream().cuda_stream


def _others_are_idle() -> bool:
    """Whether those users of CUPTI in this process that can be asked are not at work. Raises if one is."""
    proton = sys.modules.get("triton.profiler.flags")
    if proton is not None and getattr(getattr(proton, "flags", None), "profiling_on", False):
        raise MeasurementUnavailable(
            "benchmark: Triton's profiler (Proton) is at work in this process, and CUPTI serves one at a time: call "
            "`triton.profiler.finalize()` first"
        )
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False) or torch._C._autograd._profiler_enabled():
        raise MeasurementUnavailable(
            "benchmark: PyTorch's profiler is at work in this process, and CUPTI serves one at a time: measure outside "
            "of `torch.profiler.profile`"
        )
    return True
