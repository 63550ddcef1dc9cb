"""Whether a `cpu_only` function used CUDA after all (contract section 3), through libkcoral_timing.so.

Theory of operation (executor/timing/timing.h, "The guard"). The library sees every CUDA call of the process between
`begin` and `end`, from whatever thread, and notes the first: its name, and the line of Python that led there. Where it
cannot see them, because CUPTI is missing or somebody else uses it, nothing is found: it is a help for honest programs,
no fence. Processes that the program starts are not watched.

Everything is bound when this module is loaded, as in kernel.py. (What `kcoral.builtins.benchmark` does needs nothing of
this: it is the program's own call.)
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_int, c_uint64, c_void_p
from typing import Any, Optional, Sequence

from kcoral._timing import LIBRARY, cupti_candidates

_OUR_DIRECTORY = __file__[: __file__.rindex("/")]


class Violation:
    """A CUDA call where there should be none."""

    __slots__ = ("call", "location", "count")

    def __init__(self, call: str, location: str, count: int) -> None:
        self.call = call
        self.location = location
        self.count = count


class _Report(ctypes.Structure):
    """struct kcoral_guard_report"""

    _fields_ = [("calls", c_uint64), ("call", c_char * 128), ("location", c_char * 1024)]


def _bind() -> tuple[Any, Any]:
    functions = ctypes.CDLL(_OUR_DIRECTORY[: _OUR_DIRECTORY.rindex("/") + 1] + LIBRARY)
    functions.kcoral_guard_begin.argtypes = [c_char_p, c_char_p, c_char_p]
    functions.kcoral_guard_begin.restype = c_int
    functions.kcoral_guard_end.argtypes = [c_void_p]
    functions.kcoral_guard_end.restype = None
    return functions.kcoral_guard_begin, functions.kcoral_guard_end


class Guard:
    """Watches one call at a time."""

    def __init__(self, begin: Any, end: Any, candidates: bytes) -> None:
        self._begin = begin
        self._end = end
        self._candidates = candidates
        self._report = _Report()

    def begin(self, own_directories: Sequence[str]) -> None:
        """`own_directories`: where the program's own code lies."""
        self._begin(self._candidates, _OUR_DIRECTORY.encode(), "\n".join(own_directories).encode())

    def end(self) -> Optional[Violation]:
        report = self._report
        self._end(byref(report))
        if report.calls == 0:
            return None
        call, location = [text.decode("utf-8", "replace") for text in (report.call, report.location)]
        return Violation(call, location, report.calls)


def make_guard() -> Optional[Guard]:
    """None where the library is not beside us, as in a source tree."""
    try:
        return Guard(*_bind(), cupti_candidates().encode())
    except OSError:
        return None


guard = make_guard()
