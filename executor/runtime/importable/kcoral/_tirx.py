"""From a TIRx kernel to a function that runs it on the server's GPU: what `kcoral.builtins.compile_tirx` does.

Theory of operation. A kernel under `T.jit` is parsed once its constants are known: `specialize` makes a PrimFunc of it.
TVM compiles that for the architecture of the device in use. What it made is kept under the PrimFunc's structural hash
and equality, so that the same kernel is compiled once in a process however often it is defined or bound, and is dropped
when 32 others were used since.

TVM's exceptions stay the causes of ours. A binding that does not fit is the caller's mistake and stays a TypeError.

Threads may compile at the same time; the same kernel is compiled twice then.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import threading
from collections import OrderedDict
from typing import Any, Callable, Mapping

from kcoral.builtins import CompileFailed, Unavailable

COMPILED_MAX = 32  # per process; each holds a module on the device
_CUDA_NOT_INITIALISED = 3  # what cuInit says in forks alone

_mutex = threading.Lock()
_compiled: OrderedDict[Any, Callable[..., Any]] = OrderedDict()  # least recently used first; guarded by _mutex


def compile_kernel(kernel: Any, bindings: Mapping[str, Any]) -> Callable[..., Any]:
    """See `kcoral.builtins.compile_tirx`."""
    tvm = _import_tvm()
    architecture = _architecture(tvm)
    function = _primitive_function(tvm, kernel, bindings)
    key = (architecture, importlib.import_module("tvm_ffi").StructuralKey(function))
    with _mutex:
        if key in _compiled:
            _compiled.move_to_end(key)
            return _compiled[key]
    compiled = _compile(tvm, function, architecture)
    with _mutex:
        _compiled[key] = compiled
        _compiled.move_to_end(key)
        while len(_compiled) > COMPILED_MAX:
            _compiled.popitem(last=False)
    return compiled


def _import_tvm() -> Any:
    if importlib.util.find_spec("tvm") is None:
        raise Unavailable("kcoral.builtins.compile_tirx needs TVM (the Python package tvm), which the server lacks")
    try:
        tvm = importlib.import_module("tvm")
        importlib.import_module("tvm.tirx")
    except (ImportError, OSError) as error:
        raise Unavailable(
            "kcoral.builtins.compile_tirx needs TVM with TIRx, and the server's cannot be imported: %s" % error
        ) from error
    return tvm


def _architecture(tvm: Any) -> str:
    """Of the device in use, as a compiler is told: "sm_90a"."""
    device = tvm.cuda(0)
    if not device.exist and _is_cut_off():
        raise RuntimeError(
            "kcoral.builtins.compile_tirx asks CUDA what to compile for, and CUDA was started before this process was "
            "forked, and cannot be used in a fork: start the process anew (multiprocessing with 'spawn', or subprocess), "
            "or compile in its parent"
        )
    if not device.exist:
        raise Unavailable("kcoral.builtins.compile_tirx compiles for the server's own GPU, and TVM finds none here")
    major, minor = device.compute_version.split(".")
    return "sm_%s%s%s" % (major, minor, "a" if int(major) >= 9 else "")


def _is_cut_off() -> bool:
    """Whether CUDA was started in a parent of this process. Requires: somebody tried to start it here."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == _CUDA_NOT_INITIALISED
    except OSError:
        return False


def _primitive_function(tvm: Any, kernel: Any, bindings: Mapping[str, Any]) -> Any:
    if isinstance(kernel, tvm.tirx.PrimFunc):
        if bindings:
            raise TypeError("compile_tirx: a PrimFunc has nothing to bind, and bindings are given: %s" % list(bindings))
        return kernel
    if not callable(getattr(kernel, "specialize", None)):
        raise TypeError(
            "compile_tirx: a kernel is a function under T.jit or a PrimFunc, not of type " + type(kernel).__name__
        )
    try:
        return kernel.specialize(**bindings)
    except TypeError:
        raise
    except Exception as error:
        raise CompileFailed("TVM cannot specialise the kernel: %s" % error) from error


def _compile(tvm: Any, function: Any, architecture: str) -> Callable[..., Any]:
    target = tvm.target.Target({"kind": "cuda", "arch": architecture})
    # Functions in TVM's older dialect say so; the passes of one do not understand the other.
    pipeline = "s_tir" if function.attrs is not None and function.attrs.get("s_tir", False) else "tirx"
    try:
        with target:
            module = tvm.IRModule({"main": function})
            return tvm.compile(module, target=target, tir_pipeline=pipeline)["main"]
    except Exception as error:
        raise CompileFailed("TVM cannot compile the kernel: %s" % error) from error
