"""Functions for programs: timing GPU work, compiling TIRx kernels, and what selecting CUDA source gives.

Everything is importable everywhere, so that one uploaded module serves on GPU and CPU servers; a function that needs
what the server lacks raises Unavailable, which the program's answer shows as an error of kind `unavailable`.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

from kcoral._timing import MeasurementUnavailable, measure

__all__ = ["CompileFailed", "CudaFunction", "Unavailable", "benchmark", "compile_tirx"]

_DURATIONS = ("warmup_ms", "repeat_ms")
_COUNTS = ("warmup", "repeat")
_COUNT_MAX = 1_000_000


class Unavailable(RuntimeError):
    """The server's environment lacks what was asked for; the message says what."""


class CompileFailed(RuntimeError):
    """A compiler that a function of this module called has failed; the message is the compiler's."""


class CudaFunction:
    """A name in uploaded CUDA source, for a compiler function to consume."""

    __slots__ = ("source", "name")

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name

    def __repr__(self) -> str:
        return "CudaFunction(name=%r, source=<%d characters>)" % (self.name, len(self.source))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CudaFunction):
            return NotImplemented
        return (self.source, self.name) == (other.source, other.name)

    def __hash__(self) -> int:
        return hash((self.source, self.name))


def benchmark(fn: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Times the GPU activities of `fn(*args)`: `benchmark(fn, *args[, config])`.

    A dict as the last argument is the configuration: `warmup_ms` (25), `repeat_ms` (100), `flush_l2` (True), and
    `warmup` and `repeat`, counts that override the two budgets. Needs a GPU server.
    """
    if not callable(fn):
        raise TypeError("benchmark: fn is not callable: it is of type " + type(fn).__name__)
    config: dict[str, Any] = {}
    if args and isinstance(args[-1], dict):
        *args, config = args  # type: ignore[assignment]
        _check_config(config)
    try:
        return measure(fn, args, config)
    except MeasurementUnavailable as missing:
        raise Unavailable(str(missing)) from None


def _check_config(config: Mapping[Any, Any]) -> None:
    for key, value in config.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if key in _DURATIONS:
            if not number or not 0 <= value < float("inf"):
                raise ValueError("benchmark: %s must be a number of milliseconds, not %r" % (key, value))
        elif key in _COUNTS:
            least = 1 if key == "repeat" else 0
            if not number or not isinstance(value, int) or not least <= value <= _COUNT_MAX:
                expected = "a count from %d to %d" % (least, _COUNT_MAX)
                raise ValueError("benchmark: %s must be %s, not %r" % (key, expected, value))
        elif key == "flush_l2":
            if not isinstance(value, bool):
                raise ValueError("benchmark: flush_l2 must be True or False, not %r" % (value,))
        else:
            known = ", ".join(["flush_l2", *_DURATIONS, *_COUNTS])
            raise ValueError("benchmark: the configuration has no %r; it has: %s" % (key, known))


def compile_tirx(kernel: Any, bindings: Optional[Mapping[str, Any]] = None) -> Callable[..., Any]:
    """Compiles a TIRx kernel for the server's GPU: the result is called with the kernel's tensors.

    `bindings` has the values of its constexpr parameters; a PrimFunc has none. What was compiled is kept by structural
    hash: the 32 kernels that were used last, in each process. Needs TVM and a GPU server. Raises CompileFailed with
    what TVM says, and TypeError for bindings that do not fit.
    """
    from kcoral import _tirx

    return _tirx.compile_kernel(kernel, bindings or {})
