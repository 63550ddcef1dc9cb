"""Tensors of a GPU server on the fake driver: returns of whatever speaks DLPack, and how uploads and faults are told.

PyTorch's own tensors on a GPU need a real one: bench/gpu/tensor_check.py.
"""

import importlib.util
import math
import os
import struct

import pytest

from driver import digest, function, module, program, returns, run
from fake_gpu import FakeGpu

# An array of a library that nobody knows, in the memory of the fake driver. `strides` in elements.
LIBRARY = """
import ctypes, math, os
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemAlloc_v2.argtypes = cuda.fake_gpu_allocate_from_pool.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
cuda.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
cuda.fake_gpu_launch_fill.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t]

class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]

def start():
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0

def allocate(content, function="cuMemAlloc_v2"):
    address = ctypes.c_uint64()
    assert cuda[function](ctypes.byref(address), max(1, len(content))) == 0
    if content:
        assert cuda.cuMemcpyHtoDAsync_v2(address.value, content, len(content), None) == 0
    return address.value

NAME = ctypes.c_char_p(b"dltensor")
ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

class Array:
    def __init__(self, address, shape, strides=None, code=1, bits=8, lanes=1, offset=0, device=2):
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(shape))(*strides)
        self.device = device
        self.tensor = Tensor(
            address, device, 0, len(shape), code, bits, lanes, self.shape, self.strides, offset, None, None)
    def __dlpack_device__(self):
        return (self.device, 0)
    def __dlpack__(self, stream):
        assert stream == 1
        return ctypes.pythonapi.PyCapsule_New(ctypes.addressof(self.tensor), NAME, None)
start()
"""

DTYPES = {
    "bool": (6, 8), "uint8": (1, 8), "int8": (0, 8), "int16": (0, 16), "uint16": (1, 16), "int32": (0, 32),
    "uint32": (1, 32), "int64": (0, 64), "uint64": (1, 64), "float16": (2, 16), "float32": (2, 32),
    "float64": (2, 64), "bfloat16": (4, 16), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8), "complex64": (5, 64),
    "complex128": (5, 128),
}  # fmt: skip


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return FakeGpu(tmp_path_factory.mktemp("fake_gpu"))


@pytest.fixture(scope="module")
def slot(gpu, tmp_path_factory):
    slot = gpu.slot(tmp_path_factory.mktemp("slot"))
    yield slot
    slot.close()


def outcome_of(slot, text, setup=""):
    return slot.run(program(LIBRARY + setup + "\ndef f():\n    return " + text + "\n"))


def value_of(slot, text, setup=""):
    outcome = outcome_of(slot, text, setup)
    return outcome.error or outcome.returned["result"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_returned(slot, dtype):
    code, bits = DTYPES[dtype]
    content = bytes(range(1, 1 + 6 * bits // 8))
    value = value_of(slot, "Array(allocate(%r), [2, 3], code=%d, bits=%d)" % (content, code, bits))
    assert value.wire == {"type": "tensor", "dtype": dtype, "shape": [2, 3], "part": 0} and value.parts == [content]


def test_arrays_are_read_under_the_lease(slot):
    source = LIBRARY + "array = Array(allocate(b'abc'), [3])\ndef give(): return array\ndef f(): return 1\n"
    one, two = function("give"), function("f", cpu_only=True)
    outcome = slot.run([module(source), one, two, run("give", id="a"), run("f"), returns("a")])
    assert outcome.returned["result"].parts == [b"abc"]
    assert [frame["index"] for frame in outcome.frames if "lease" in frame["type"]] == [0, 4, 5]


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "fake_gpu_allocate_from_pool"])
def test_managed_memory_and_memory_of_a_pool(slot, function):
    value = value_of(slot, "Array(allocate(b'abcd', %r), [3], offset=1, device=13)" % function)
    assert value.parts == [b"bcd"]


@pytest.mark.parametrize(
    "layout, shape, numbers",
    [
        ("[], None", [], [0]),
        ("[], []", [], [0]),
        ("[0, 4], None", [0, 4], []),
        ("[2, 0], [7, 7]", [2, 0], []),
        ("[2, 3], [3, 1]", [2, 3], [0, 1, 2, 3, 4, 5]),
        ("[3, 2], [1, 3]", [3, 2], [0, 3, 1, 4, 2, 5]),
        ("[2, 2], [0, 2]", [2, 2], [0, 2, 0, 2]),
        ("[3], [-2], offset=16", [3], [4, 2, 0]),
        ("[2, 2], [-4, 3], offset=20", [2, 2], [5, 8, 1, 4]),
        ("[1, 3], [99, 1]", [1, 3], [0, 1, 2]),
        ("[2, 1, 3], [1, 99, 2], offset=8", [2, 1, 3], [2, 4, 6, 3, 5, 7]),
    ],
)
def test_whatever_the_layout(slot, layout, shape, numbers):
    content = struct.pack("<12i", *range(12))
    layout = layout.replace("], ", "], strides=", 1)
    value = value_of(slot, "Array(allocate(%r), %s, code=0, bits=32)" % (content, layout))
    assert value.wire == {"type": "tensor", "dtype": "int32", "shape": shape, "part": 0}
    assert value.parts == [struct.pack("<%di" % math.prod(shape), *numbers)]


def test_large_and_small_parts_lie_one_after_another(gpu, slot):
    gpu.forget()
    setup = "large, small = os.urandom(3 << 20), b'12345'\n"
    text = "[small, Array(allocate(large), [3 << 20]), Array(allocate(small), [5]), large, Array(allocate(b''), [0])]"
    value = value_of(slot, text, setup)
    assert value.parts[0] == value.parts[2] == b"12345" and value.parts[4] == b""
    assert value.parts[1] == value.parts[3] and len(value.parts[1]) == 3 << 20
    assert "register %d flags 1" % ((3 << 20) + 4096) in gpu.calls


def test_work_that_is_under_way_is_waited_for(slot):
    text = "(Array(address, [4]), cuda.fake_gpu_launch_fill(address, ord('x'), 2))[0]"
    assert value_of(slot, text, "address = allocate(b'abcd')\n").parts == [b"xxcd"]


@pytest.mark.parametrize(
    "facts, reason",
    [
        ("[1], code=3, bits=64", "code 3"),
        ("[1], lanes=4", "4 lanes"),
        ("[-1]", "negative"),
        ("[1] * 65", "65 dimensions"),
        ("[2], strides=[1 << 31]", "contiguous"),
    ],
)
def test_what_has_no_encoding(slot, facts, reason):
    error = value_of(slot, "Array(allocate(b'a'), %s)" % facts)
    assert error["kind"] == "serialization" and reason in error["message"]


def test_a_broken_context_is_the_programs_runtime_error_and_keeps_what_was_returned(slot):
    source = LIBRARY + """
def good(): return Array(allocate(b"good"), [4])
def bad():
    os.environ["FAKE_GPU_SYNCHRONIZE_ERROR"] = "700"
    return [1, {"deep": Array(allocate(b"bad"), [3])}]
"""
    names = function("good"), function("bad")
    outcome = slot.run(
        [module(source), *names, run("good", id="g"), returns("g", "g"), run("bad", id="b"), returns("b", "b")]
    )
    assert outcome.returned["g"].parts == [b"good"] and "b" not in outcome.returned
    assert outcome.error["kind"] == "runtime" and outcome.error["index"] == 6
    assert "an illegal memory access was encountered" in outcome.error["message"]
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in outcome.error["message"]


@pytest.mark.parametrize(
    "fault, kind, reason",
    [("0", "serialization", "ZeroDivisionError"), ("700", "runtime", "illegal memory access")],
)
def test_an_array_that_raises_is_to_blame_unless_the_context_is_broken(slot, fault, kind, reason):
    setup = """
class Raises(Array):
    def __dlpack__(self, stream): 1 / 0
os.environ["FAKE_GPU_SYNCHRONIZE_ERROR"] = %r
""" % fault
    error = value_of(slot, "Raises(0, [1])", setup)
    assert error["kind"] == kind and reason in error["message"]


def test_a_cuda_error_that_a_library_reports_is_one(slot):
    setup = """
class Raises(Array):
    def __dlpack__(self, stream): raise RuntimeError("CUDA error: no kernel image is available\\nand advice")
"""
    error = value_of(slot, "Raises(0, [1])", setup)
    assert error["kind"] == "runtime" and "no kernel image is available" in error["message"]
    assert "advice" not in error["message"] and "RuntimeError" in error["traceback"]


def test_a_copy_that_fails_is_a_cuda_error(slot):
    setup = "array = Array(allocate(b'a'), [1])\nos.environ['FAKE_GPU_COPY_ERROR'] = '1'\n"
    error = value_of(slot, "array", setup)
    assert error["kind"] == "runtime" and "CUDA_ERROR_INVALID_VALUE in cuMemcpyDtoH" in error["message"]


@pytest.mark.parametrize("fault", ["0", "801"])
def test_a_program_that_spoils_its_interpreter_still_returns(slot, fault):
    setup = """
import builtins
content = os.urandom(2 << 20)
array = Array(allocate(content), [2 << 20])
os.environ["FAKE_GPU_HOST_REGISTER_ERROR"] = %r
def spoil():
    names = vars(builtins)
    for name in [*names]:
        if name[0] != "_" and name != "AssertionError":
            names[name] = None
    return [array, content]
""" % fault
    value = value_of(slot, "spoil()", setup)
    assert value.parts[0] == value.parts[1]


def test_a_fork_keeps_nothing_mapped(slot):
    """Sealing fails where anybody still maps the memory for writing."""
    setup = """
import threading
started, done = threading.Event(), threading.Event()
hold = os.pipe()
def forks():
    while not done.is_set():
        if os.fork() == 0:
            os.close(hold[1])
            os.read(hold[0], 1)  # until the runtime ends
            os._exit(0)
        started.set()
content = os.urandom(4 << 20)
thread = threading.Thread(target=forks, daemon=True)
thread.start()
started.wait()
"""
    functions = "def f(): return Array(allocate(content), [4 << 20])\ndef stop(): done.set(); thread.join()\n"
    source = LIBRARY + setup + functions
    outcome = slot.run([module(source), function("f"), function("stop"), run("f"), returns(), run("stop", id="s")])
    assert not outcome.error, outcome.error
    assert len(outcome.returned["result"].parts[0]) == 4 << 20


def upload_of(slot, content=b"1234", **more):
    upload = {"op": "upload", "id": "t", "kind": "tensor", "dtype": "float32", "shape": [1], "blob": digest(content)}
    return slot.run([upload], [content], **more)


def test_an_upload_says_what_is_missing(slot):
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed")
    error = upload_of(slot).error
    assert error["kind"] == "unavailable" and "PyTorch" in error["message"]


def test_an_upload_says_that_pytorch_finds_no_gpu(slot):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    error = upload_of(slot).error
    assert error["kind"] == "unavailable" and "PyTorch" in error["message"]


def test_what_is_no_tensor_arrives_from_shared_mappings(slot):
    content = os.urandom(10_000)
    source = "def f(b):\n    with open('dir/file', 'rb') as file:\n        return file.read() == b\n"
    outcome = slot.run(
        [
            {"op": "upload", "id": "a", "kind": "bytes", "blob": digest(content)},
            {"op": "upload", "id": "p", "kind": "file", "path": "dir/file", "blob": digest(content)},
            {"op": "upload", "id": "b", "kind": "bytes", "blob": digest(content)},
            module(source),
            function("f"),
            run("f", {"$ref": "b"}),
            returns(),
        ],
        [content],
    )
    assert outcome.returned["result"].wire["value"] is True
