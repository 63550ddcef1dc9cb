"""Contract section 4: how values travel."""

from __future__ import annotations

import pytest

from harness import Server, Tensor

VALUES = [
    ("None", None),
    ("True", True),
    ("42", 42),
    ("-(10 ** 5000)", -(10**5000)),
    ("3.14", 3.14),
    ("'ünïcode \\x00 \\u2028'", "ünïcode \x00 \u2028"),
    ("[1, [2.5, ['x', None]]]", [1, [2.5, ["x", None]]]),
    ("(1, (2,))", [1, [2]]),
    ("{'z': 1, 'a': {}}", {"z": 1, "a": {}}),
    ("b'\\x00\\xff'", b"\x00\xff"),
    ("bytearray(b'ab')", b"ab"),
    ("memoryview(b'abcdef')[::2]", b"ace"),
    ("list(range(100_000))", list(range(100_000))),
    ("numpy.int8(-5)", -5),
    ("numpy.uint64(2 ** 64 - 1)", 2**64 - 1),
    ("numpy.bool_(True)", True),
    ("numpy.float32(0.5)", 0.5),
    ("[numpy.float64(0.1)]", [0.1]),
    ("Color.RED", 7),
    ("collections.OrderedDict(b=1, a=2)", {"b": 1, "a": 2}),
    ("Point(1, 2)", [1, 2]),
    ("Text('x')", "x"),
    ("Hostile(a=1)", {"a": 1}),
]

MODULE = """
import collections, enum, math, numpy

class Color(enum.IntEnum):
    RED = 7

class Point(collections.namedtuple("Point", "x y")): pass

class Text(str):
    def __str__(self): raise RuntimeError("never called")

class Hostile(dict):
    def items(self): raise RuntimeError("never called")
    def __iter__(self): raise RuntimeError("never called")
    def __len__(self): raise RuntimeError("never called")

def cycle():
    a = []
    a.append({"again": a})
    return a

def deep(n):
    return [deep(n - 1)] if n else 0

def main():
    return EXPRESSION
"""


@pytest.mark.parametrize("expression, expected", VALUES, ids=[expression for expression, _ in VALUES])
def test_values(server: Server, expression, expected):
    import sys

    sys.set_int_max_str_digits(0)
    result = server.run(MODULE.replace("EXPRESSION", expression))
    assert result.value() == expected and type(result.value()) is type(expected)
    if isinstance(expected, dict):
        assert list(result.value()) == list(expected)


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("numpy.arange(6, dtype='int16').reshape(2, 3)", ("int16", [2, 3], bytes([0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]))),
        ("numpy.arange(6, dtype='int8').reshape(2, 3).T", ("int8", [3, 2], bytes([0, 3, 1, 4, 2, 5]))),
        ("numpy.array([1], dtype='>i4')", ("int32", [1], bytes([1, 0, 0, 0]))),
        ("numpy.array(True)", ("bool", [], b"\1")),
        ("numpy.zeros((0, 4), dtype='float16')", ("float16", [0, 4], b"")),
        ("numpy.array([1j], dtype='complex64')", ("complex64", [1], b"\0\0\0\0\0\0\x80\x3f")),
    ],
)
def test_tensors(server: Server, expression, expected):
    assert server.run(MODULE.replace("EXPRESSION", expression)).value() == Tensor(*expected)


@pytest.mark.parametrize(
    "expression",
    [
        "float('nan')", "float('inf')", "[1, {'a': float('-inf')}]", "numpy.float32('nan')", "{1: 2}", "{('a',): 1}", "object()",
        "{1, 2}", "1j", "numpy.array(['a'])", "numpy.array([None])", "'\\ud800'", "{'\\ud800': 1}", "cycle()", "deep(200)",
        "main", "(x for x in [])", "numpy.datetime64('2026-01-01')",
    ],
)  # fmt: skip
def test_what_cannot_be_returned(server: Server, expression):
    result = server.run(MODULE.replace("EXPRESSION", expression))
    assert result.status == "FAILED" and result.values == {}
    assert result.error["kind"] == "serialization" and result.error["message"]
    assert result.error["instruction_op"] == "return" and result.error["instruction_id"] is None


def test_nesting_of_128_is_accepted(server: Server):
    result = server.run(MODULE.replace("EXPRESSION", "deep(127)"))
    assert result.status == "COMPLETED", result.error
