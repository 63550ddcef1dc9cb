"""kcoral.builtins.compile_tirx: against a TVM that only pretends, which shows what is compiled when, and the real one
where it is installed."""

import importlib.util
import textwrap

import pytest

from driver import digest, function, module, returns, run

FAKE_TVM = '''
"""As much of TVM as compile_tirx touches. Kernels are texts; `log` has what was compiled, and for what."""
from tvm import tirx

log = []

class Device:
    exist = True
    compute_version = "9.0"

def cuda(index):
    return Device

class Target:
    current = None
    def __init__(self, config): self.config = config
    def __enter__(self): Target.current = self
    def __exit__(self, *exception): Target.current = None

class target:
    Target = Target

def IRModule(functions):
    return functions

def compile(module, target, tir_pipeline):
    assert Target.current is target and list(module) == ["main"]
    text = module["main"].text
    if "wrong" in text:
        raise RuntimeError("ptxas does not like it")
    log.append("%s for %s by %s" % (text, target.config["arch"], tir_pipeline))
    return {"main": lambda *args: [text, *args]}
'''
FAKE_TIRX = """
class PrimFunc:
    def __init__(self, text, **attrs):
        self.text, self.attrs = text, attrs or None

class Jit:
    def __init__(self, text): self.text = text
    def specialize(self, **constants):
        if set(constants) != {"N"}:
            raise TypeError("missing constexpr arg(s)")
        if "unparsable" in self.text:
            raise RuntimeError("undefined variable")
        return PrimFunc(self.text % constants)
"""
FAKE_TVM_FFI = """
class StructuralKey:
    def __init__(self, function): self.text = function.text
    def __eq__(self, other): return self.text == other.text
    def __hash__(self): return hash(self.text)
"""
SOURCE = """
import tvm
from tvm.tirx import Jit, PrimFunc
from kcoral.builtins import compile_tirx
"""


def run_with(slot, files, source, name="f", *args):
    """The outcome of a program that calls a function of a module, with files beside it."""
    uploads = [
        {"op": "upload", "id": path, "kind": "file", "path": path, "blob": digest(text.encode())}
        for path, text in files.items()
    ]
    contents = [text.encode() for text in files.values()]
    return slot.run([*uploads, module(source), function(name), run(name, *args), returns()], contents)


def with_fake(slot, body):
    """The outcome of an f() with this body where there is a TVM that pretends."""
    files = {"tvm/__init__.py": FAKE_TVM, "tvm/tirx.py": FAKE_TIRX, "tvm_ffi.py": FAKE_TVM_FFI}
    return run_with(slot, files, SOURCE + "def f():\n" + textwrap.indent(textwrap.dedent(body), "    "))


def value(outcome):
    assert not outcome.error, outcome.error
    return [each["value"] for each in outcome.returned["result"].wire["value"]]


def test_a_kernel_is_specialised_and_compiled_for_the_device(slot):
    outcome = with_fake(slot, 'return [str(compile_tirx(Jit("add %(N)d"), {"N": 256})(1, 2)), *tvm.log]\n')
    assert value(outcome) == ["['add 256', 1, 2]", "add 256 for sm_90a by tirx"]


def test_a_primitive_function_needs_no_bindings(slot):
    outcome = with_fake(slot, 'return [str(compile_tirx(PrimFunc("copy"))(3)), *tvm.log]\n')
    assert value(outcome) == ["['copy', 3]", "copy for sm_90a by tirx"]


def test_the_older_dialect_has_its_own_passes(slot):
    outcome = with_fake(slot, 'compile_tirx(PrimFunc("copy", s_tir=True))\nreturn tvm.log\n')
    assert value(outcome) == ["copy for sm_90a by s_tir"]


def test_older_devices_have_no_a(slot):
    outcome = with_fake(slot, 'tvm.Device.compute_version = "8.6"\ncompile_tirx(PrimFunc("copy"))\nreturn tvm.log\n')
    assert value(outcome) == ["copy for sm_86 by tirx"]


def test_what_has_the_same_structure_is_compiled_once(slot):
    body = """
    first = compile_tirx(Jit("add %(N)d"), {"N": 256})
    again = [compile_tirx(Jit("add %(N)d"), {"N": 256}), compile_tirx(PrimFunc("add 256"))]
    return [all(each is first for each in again), compile_tirx(Jit("add %(N)d"), {"N": 4}) is first, len(tvm.log)]
    """
    assert value(with_fake(slot, body)) == [True, False, 2]


def test_the_least_recently_used_of_32_goes_first(slot):
    body = """
    for n in range(32):
        compile_tirx(PrimFunc(str(n)))
    compile_tirx(PrimFunc("0"))
    compile_tirx(PrimFunc("32"))  # 1 goes
    before = len(tvm.log)
    for n in (0, *range(2, 33)):
        compile_tirx(PrimFunc(str(n)))
    kept = len(tvm.log)
    compile_tirx(PrimFunc("1"))
    return [before, kept, len(tvm.log)]
    """
    assert value(with_fake(slot, body)) == [33, 33, 34]


@pytest.mark.parametrize(
    "call, kind, message",
    [
        ('compile_tirx(PrimFunc("wrong"))', "compile", "ptxas does not like it"),
        ('compile_tirx(Jit("unparsable"), {"N": 1})', "compile", "undefined variable"),
        ('compile_tirx(Jit("add"))', "runtime", "missing constexpr"),
        ('compile_tirx(Jit("add"), {"M": 1})', "runtime", "missing constexpr"),
        ('compile_tirx(PrimFunc("add"), {"N": 1})', "runtime", "nothing to bind"),
        ("compile_tirx(print)", "runtime", "not of type builtin_function_or_method"),
    ],
)
def test_errors(slot, call, kind, message):
    error = with_fake(slot, "return " + call + "\n").error
    assert error["kind"] == kind and message in error["message"], error


def test_what_failed_is_not_kept(slot):
    body = """
    from kcoral.builtins import CompileFailed
    failed = 0
    for _ in range(2):
        try:
            compile_tirx(PrimFunc("wrong"))
        except CompileFailed:
            failed += 1
    return [failed]
    """
    assert value(with_fake(slot, body)) == [2]


def test_no_device(slot):
    error = with_fake(slot, 'tvm.Device.exist = False\ncompile_tirx(PrimFunc("add"))\n').error
    assert error["kind"] == "unavailable" and "GPU" in error["message"], error


def test_in_a_fork_of_whoever_started_cuda(slot):
    body = """
    import types, kcoral._tirx
    class Library:  # as libcuda.so.1 is in such a process
        def __init__(self, name): pass
        def cuInit(self, flags): return 3
    kcoral._tirx.ctypes = types.SimpleNamespace(CDLL=Library)
    tvm.Device.exist = False
    compile_tirx(PrimFunc("add"))
    """
    error = with_fake(slot, body).error
    assert error["kind"] == "runtime" and "forked" in error["message"] and "spawn" in error["message"], error


@pytest.mark.parametrize(
    "files, message",
    [
        ({"tvm/__init__.py": "raise ImportError('libtvm_runtime.so is damaged')\n"}, "libtvm_runtime.so is damaged"),
        ({"tvm/__init__.py": ""}, "tvm.tirx"),
    ],
)
def test_a_tvm_that_does_not_do(slot, files, message):
    error = run_with(slot, files, "from kcoral.builtins import compile_tirx\n", "compile_tirx", 1).error
    assert error["kind"] == "unavailable" and message in error["message"], error


@pytest.mark.skipif(importlib.util.find_spec("tvm") is not None, reason="TVM is installed")
def test_without_tvm(slot):
    error = run_with(slot, {}, "from kcoral.builtins import compile_tirx\n", "compile_tirx", 1).error
    assert error["kind"] == "unavailable" and "TVM" in error["message"], error


REAL = """
from __future__ import annotations
import tvm
from kcoral.builtins import CompileFailed, compile_tirx
from tvm.script import tirx as T

class Device:
    exist = True
    compute_version = "9.0"

# Compiling needs no device: TVM makes CUDA source where there is none.
if not tvm.cuda(0).exist:
    tvm.cuda = lambda index: Device

@T.jit
def add_one(A: T.Buffer((N,), "float32"), B: T.Buffer((N,), "float32"), *, N: T.constexpr):
    T.device_entry()
    i = T.cta_id([N])
    t = T.thread_id([1])
    B[i] = A[i] + 1.0

@T.jit
def undefined(A: T.Buffer((N,), "float32"), *, N: T.constexpr):
    T.device_entry()
    i = T.cta_id([N])
    A[i] = nowhere + 1.0

@T.prim_func
def add_256(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")):
    T.device_entry()
    i = T.cta_id([256])
    t = T.thread_id([1])
    B[i] = A[i] + 1.0

@T.prim_func(s_tir=True)
def older(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")):
    for i in T.thread_binding(256, thread="blockIdx.x"):
        B[i] = A[i] + 1.0

def kernels():
    first = compile_tirx(add_one, {"N": 256})
    same = compile_tirx(add_one, {"N": 256}) is first
    other = compile_tirx(add_one, {"N": 512}) is first
    return [same, other, callable(compile_tirx(add_256)), callable(compile_tirx(older))]

def broken():
    return compile_tirx(undefined, {"N": 4})

def unbound():
    return compile_tirx(add_one)
"""


@pytest.mark.skipif(importlib.util.find_spec("tvm") is None, reason="TVM is not installed")
def test_the_real_tvm(slot):
    assert value(run_with(slot, {}, REAL, "kernels")) == [True, False, True, True]
    error = run_with(slot, {}, REAL, "broken").error
    assert error["kind"] == "compile" and "nowhere" in error["message"], error
    error = run_with(slot, {}, REAL, "unbound").error
    assert error["kind"] == "runtime" and "'N'" in error["message"], error
