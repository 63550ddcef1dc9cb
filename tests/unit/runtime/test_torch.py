"""PyTorch's tensors, in and out, where it is installed; on a GPU where there is one."""

import importlib.util
import struct

import pytest

from driver import Slot, digest, function, module, program, returns, run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def slot(tmp_path_factory):
    slot = Slot(tmp_path_factory.mktemp("slot"), preload=["torch"])
    assert slot.hello["type"] == "zygote_ready", slot.hello
    yield slot
    slot.close()


def value_of(slot, text, setup=""):
    outcome = slot.run(program("import torch\n" + setup + "\ndef f():\n    return " + text + "\n"))
    return outcome.error or outcome.returned["result"]


DTYPES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}


@pytest.mark.parametrize("shape", [[2, 3], [], [0, 4]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_as_it_went(slot, dtype, shape):
    count = 1
    for dimension in shape:
        count *= dimension
    content = bytes([1, 0, 1, 1] * 24)[: count * DTYPES[dtype]]
    upload = {"op": "upload", "id": "t", "kind": "tensor", "dtype": dtype, "shape": shape, "blob": digest(content)}
    source = "import torch\ndef f(t):\n    return [type(t) is torch.Tensor, str(t.dtype), t.is_contiguous()]\n"
    outcome = slot.run(
        [upload, module(source), function("f"), run("f", {"$ref": "t"}), returns(), returns("t", "t")],
        [content],
        needs_lease=False,
    )
    assert not outcome.error, outcome.error
    assert [each["value"] for each in outcome.returned["result"].wire["value"]] == [True, "torch." + dtype, True]
    assert outcome.returned["t"].wire == {"type": "tensor", "dtype": dtype, "shape": shape, "part": 0}
    assert outcome.returned["t"].parts == [content]


@pytest.mark.parametrize(
    "text, dtype, shape, content",
    [
        ("torch.arange(6, dtype=torch.int32).reshape(2, 3).T", "int32", [3, 2], struct.pack("<6i", 0, 3, 1, 4, 2, 5)),
        ("torch.ones(2, requires_grad=True)", "float32", [2], struct.pack("<2f", 1, 1)),
        ("torch.nn.Parameter(torch.ones(1))", "float32", [1], struct.pack("<f", 1)),
        ("torch.tensor([1 + 2j]).conj()", "complex64", [1], struct.pack("<2f", 1, -2)),
        ("torch.arange(6, dtype=torch.uint8)[1::2]", "uint8", [3], b"\1\3\5"),
        ("torch.tensor(7)", "int64", [], struct.pack("<q", 7)),
        ("Liar(torch.ones(1))", "float32", [1], struct.pack("<f", 1)),
        ("torch.ones(1).expand(3)", "float32", [3], struct.pack("<3f", 1, 1, 1)),
    ],
)
def test_tensors(slot, text, dtype, shape, content):
    setup = """
class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **more): raise RuntimeError
    @staticmethod
    def __new__(cls, data): return torch.Tensor._make_subclass(cls, data)
"""
    value = value_of(slot, text, setup)
    assert value.wire == {"type": "tensor", "dtype": dtype, "shape": shape, "part": 0} and value.parts == [content]


@pytest.mark.parametrize(
    "text",
    ["torch.ones(2).to_sparse()", "torch.ones(2, device='meta')", "torch.float32", "torch.ones(1).to(torch.complex32)"],
)
def test_what_cannot_be_returned(slot, text):
    assert value_of(slot, text)["kind"] == "serialization"


def test_generators_differ_between_forks(slot):
    draws = {value_of(slot, "torch.rand(1)").parts[0] for _ in range(3)}
    assert len(draws) == 3


def test_a_failed_comparison_is_about_correctness(slot):
    error = value_of(slot, "torch.testing.assert_close(torch.ones(1), torch.zeros(1))")
    assert error["kind"] == "correctness" and "not close" in error["message"]


def test_a_gpu_tensor_is_returned_under_the_lease(slot):
    source = "import torch\ndef there(): return torch.cuda.is_available()\n"
    if not slot.run(program(source, name="there"), devices=[0]).returned["result"].wire["value"]:
        pytest.skip("no GPU")
    source = """
import torch
def f(): return torch.arange(4., device="cuda").reshape(2, 2).T
def g(): return 1
"""
    outcome = slot.run(
        [
            module(source),
            function("f"),
            function("g", cpu_only=True),
            run("f", id="t"),
            run("g", id="one"),
            returns("t"),
            returns("one", "one"),
        ],
        devices=[0],
    )
    assert outcome.returned["result"].parts == [struct.pack("<4f", 0, 2, 1, 3)]
    assert [frame["type"] for frame in outcome.frames if "lease" in frame["type"]] == [
        "lease_request",
        "lease_release",
        "lease_request",
    ]
