"""Every row of contract section 4, from a program's object to the value document."""

import json
import math
import random
import struct
import sys

import pytest

from driver import digest, function, module, program, returns, run

if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)  # for reading what came back


def value_of(slot, source, *args):
    """The value that f() returns, or the error document."""
    outcome = slot.run(program(source, *args))
    if outcome.error:
        return outcome.error
    assert outcome.completed, outcome.stderr
    return outcome.returned["result"]


def expression(slot, text, setup=""):
    return value_of(slot, setup + "\ndef f():\n    return " + text + "\n")


@pytest.mark.parametrize(
    "text, wire",
    [
        ("None", {"type": "null"}),
        ("True", {"type": "boolean", "value": True}),
        ("False", {"type": "boolean", "value": False}),
        ("0", {"type": "integer", "value": 0}),
        ("-(2**70)", {"type": "integer", "value": -(2**70)}),
        ("10**6000", {"type": "integer", "value": 10**6000}),
        ("3.14", {"type": "number", "value": 3.14}),
        ("1e300", {"type": "number", "value": 1e300}),
        ("5e-324", {"type": "number", "value": 5e-324}),
        ("'a\"\\\\\\n\\x00\\x7f\\u20ac\\U0001f600'", {"type": "string", "value": 'a"\\\n\x00\x7f\u20ac\U0001f600'}),
        ("''", {"type": "string", "value": ""}),
        ("[]", {"type": "array", "value": []}),
        ("(1, 'b')", {"type": "array", "value": [{"type": "integer", "value": 1}, {"type": "string", "value": "b"}]}),
        ("{}", {"type": "object", "value": {}}),
        (
            "{'b': 1, 'a': None}",
            {"type": "object", "value": {"b": {"type": "integer", "value": 1}, "a": {"type": "null"}}},
        ),
        ("np.int64(-7)", {"type": "integer", "value": -7}),
        ("np.uint64(2**64 - 1)", {"type": "integer", "value": 2**64 - 1}),
        ("np.bool_(True)", {"type": "boolean", "value": True}),
        ("np.float64(0.1)", {"type": "number", "value": 0.1}),
        ("np.float32(0.5)", {"type": "number", "value": 0.5}),
        ("np.float16(0.25)", {"type": "number", "value": 0.25}),
        ("np.str_('x')", {"type": "string", "value": "x"}),
    ],
)
def test_scalars_and_containers(slot, text, wire):
    value = expression(slot, text, "import numpy as np")
    assert value.wire == wire and value.parts == []
    assert json.dumps(value.wire) == json.dumps(wire)  # the order of members, too


def test_negative_zero_keeps_its_sign(slot):
    assert math.copysign(1, expression(slot, "-0.0").wire["value"]) == -1


SUBCLASSES = """
import enum, collections, typing
class Level(enum.IntEnum):
    LOW = 3
class Name(str, enum.Enum):
    A = "a"
class LoudStr(str):
    def __str__(self): raise RuntimeError
    def encode(self, *a): raise RuntimeError
    def isascii(self): raise RuntimeError
class LoudInt(int):
    def __repr__(self): raise RuntimeError
    def __index__(self): raise RuntimeError
class LoudFloat(float):
    def __float__(self): raise RuntimeError
    def __sub__(self, other): raise RuntimeError
    def __repr__(self): raise RuntimeError
class LoudList(list):
    def __iter__(self): raise RuntimeError
    def __len__(self): return 99
class LoudDict(dict):
    def items(self): raise RuntimeError
    def __iter__(self): raise RuntimeError
    def keys(self): raise RuntimeError
class LoudBytes(bytes):
    def __getitem__(self, key): raise RuntimeError
    def __buffer__(self, flags): raise RuntimeError
    def __bytes__(self): raise RuntimeError
Point = collections.namedtuple("Point", "x y")
ordered = collections.OrderedDict(a=1, b=2, c=3)
ordered.move_to_end("a")
"""


@pytest.mark.parametrize(
    "text, wire",
    [
        ("Level.LOW", {"type": "integer", "value": 3}),
        ("Name.A", {"type": "string", "value": "a"}),
        ("LoudStr('s')", {"type": "string", "value": "s"}),
        ("LoudInt(5)", {"type": "integer", "value": 5}),
        ("LoudFloat(2.5)", {"type": "number", "value": 2.5}),
        ("LoudList([1])", {"type": "array", "value": [{"type": "integer", "value": 1}]}),
        ("LoudDict(k=None)", {"type": "object", "value": {"k": {"type": "null"}}}),
        ("{LoudStr('k'): None}", {"type": "object", "value": {"k": {"type": "null"}}}),
        ("Point(1, 2)", {"type": "array", "value": [{"type": "integer", "value": 1}, {"type": "integer", "value": 2}]}),
        ("collections.Counter('aa')", {"type": "object", "value": {"a": {"type": "integer", "value": 2}}}),
    ],
)
def test_subclasses_are_encoded_as_their_base_type(slot, text, wire):
    assert expression(slot, text, SUBCLASSES).wire == wire


def test_subclasses_of_bytes(slot):
    value = expression(slot, "LoudBytes(b'abc')", SUBCLASSES)
    assert value.wire == {"type": "bytes", "part": 0} and value.parts == [b"abc"]


def test_ordered_dicts_keep_their_own_order(slot):
    assert list(expression(slot, "ordered", SUBCLASSES).wire["value"]) == ["b", "c", "a"]


@pytest.mark.parametrize(
    "text, content",
    [
        ("b'abc\\x00'", b"abc\0"),
        ("b''", b""),
        ("bytearray(b'xyz')", b"xyz"),
        ("memoryview(b'012345')[1:4]", b"123"),
        ("memoryview(b'012345')[::-2]", b"531"),
        ("memoryview(bytes(range(6))).cast('B', (2, 3))", bytes(range(6))),
        ("memoryview(array.array('d', [1.5]))", struct.pack("<d", 1.5)),
    ],
)
def test_bytes(slot, text, content):
    value = expression(slot, text, "import array")
    assert value.wire == {"type": "bytes", "part": 0} and value.parts == [content]


def test_parts_are_numbered_depth_first(slot):
    value = expression(slot, "{'z': [b'0', {'y': b'1'}], 'a': b'2', 'n': [1, b'3']}")
    assert value.parts == [b"0", b"1", b"2", b"3"]
    assert value.wire["value"]["a"]["part"] == 2 and value.wire["value"]["n"]["value"][1]["part"] == 3


@pytest.mark.parametrize(
    "text, dtype, shape, content",
    [
        ("np.arange(6, dtype='<i4').reshape(2, 3)", "int32", [2, 3], struct.pack("<6i", *range(6))),
        ("np.arange(6, dtype='<i4').reshape(2, 3).T", "int32", [3, 2], struct.pack("<6i", 0, 3, 1, 4, 2, 5)),
        ("np.arange(3, dtype='>i2')", "int16", [3], struct.pack("<3h", 0, 1, 2)),
        ("np.arange(8, dtype='>f8')[::-3]", "float64", [3], struct.pack("<3d", 7, 4, 1)),
        ("np.array(2.5, dtype='f2')", "float16", [], struct.pack("<e", 2.5)),
        ("np.array(True)", "bool", [], b"\1"),
        ("np.zeros((0, 4), dtype='c8')", "complex64", [0, 4], b""),
        ("np.array([1+2j])", "complex128", [1], struct.pack("<2d", 1, 2)),
        ("np.matrix([[1, 2]], dtype='u1')", "uint8", [1, 2], b"\1\2"),
        ("Capsule(np.arange(3, dtype='u2'))", "uint16", [3], struct.pack("<3H", 0, 1, 2)),
        ("Liar((2,), dtype='i1', buffer=bytearray(b'ab'))", "int8", [2], b"ab"),
    ]
    + [("np.ones(2, '%s')" % name, name, [2], None) for name in ("int8", "int64", "uint32", "uint64", "float32")],
)
def test_arrays(slot, text, dtype, shape, content):
    setup = """
import numpy as np
class Capsule:
    def __init__(self, array): self.array = array
    def __dlpack__(self, **more): return self.array.__dlpack__(**more)
    def __dlpack_device__(self): return self.array.__dlpack_device__()
class Liar(np.ndarray):
    shape = dtype = property(lambda self: 1 / 0)
    def view(self, *a): raise RuntimeError
    def __array__(self, *a): raise RuntimeError
"""
    if "Liar" in text:
        setup += "def make():\n    return Liar.__new__(Liar, (2,), 'i1', bytearray(b'ab'))\n"
        text = "make()"
    value = expression(slot, text, setup)
    assert value.wire == {"type": "tensor", "dtype": dtype, "shape": shape, "part": 0}
    if content is not None:
        assert value.parts == [content]


@pytest.mark.parametrize(
    "text, path, reason",
    [
        ("float('nan')", "$", "finite"),
        ("{'a': [1, 2, 3, float('inf')]}", "$.a[3]", "finite"),
        ("{'a b': {'c': object()}}", '$["a b"].c', "object"),
        ("[1, {2: 3}]", "$[1]", "key"),
        ("'\\ud800'", "$", "Unicode"),
        ("{'\\udfff': 1}", "$", "Unicode"),
        ("{'k': ['x\\ud800']}", "$.k[0]", "Unicode"),
        ("{1, 2}", "$", "set"),
        ("1 + 2j", "$", "complex"),
        ("print", "$", "builtin_function"),
        ("sys", "$", "module"),
        ("np.float32('nan')", "$", "finite"),
        ("np.array(['a'])", "$", "<U1"),
        ("np.array([None])", "$", "object"),
        ("np.zeros(2, dtype='longdouble')", "$", "float128"),
        ("np.zeros(2, dtype=[('a', 'i4')])", "$", "dtype"),
        ("np.datetime64('2020-01-01')", "$", "datetime64"),
        ("np.timedelta64(1, 'ns')", "$", "timedelta64"),
        ("np.complex64(1)", "$", "complex64"),
        ("released", "$", "released"),
        ("cyclic_list", "$.me[0]", "contains itself"),
        ("cyclic_dict", "$.me", "contains itself"),
        ("wide", "$[0]", "contains itself"),
        ("clash", "$", "two keys"),
        ("coroutine()", "$", "coroutine"),
        ("Broken()", "$", "ZeroDivisionError"),
    ],
)
def test_what_cannot_be_returned_says_where_and_why(slot, text, path, reason):
    setup = """
import sys
import numpy as np
released = memoryview(b'x'); released.release()
cyclic_list = {}; cyclic_list['me'] = [cyclic_list]
cyclic_dict = {}; cyclic_dict['me'] = cyclic_dict
wide = []; wide += [wide] * 100
class S(str):
    __hash__ = object.__hash__
    def __eq__(self, other): return self is other
clash = {S('k'): 1, S('k'): 2}
async def coroutine(): pass
class Broken:
    def __dlpack__(self): return 1 / 0
    def __dlpack_device__(self): return 1 / 0
"""
    error = expression(slot, text, setup)
    assert error["kind"] == "serialization", error
    assert error["message"].startswith(path + ": ") and reason in error["message"], error["message"]


def nested(depth):
    return "def f():\n    value = 1\n    for _ in range(%d): value = [value]\n    return value\n" % depth


def test_nesting_up_to_the_bound(slot):
    value = value_of(slot, nested(128)).wire
    for _ in range(128):
        value = value["value"][0]
    assert value == {"type": "integer", "value": 1}


@pytest.mark.parametrize("depth", [129, 100000])
def test_nesting_beyond_the_bound(slot, depth):
    error = value_of(slot, nested(depth))
    assert error["kind"] == "serialization" and "128" in error["message"]


def test_shared_but_not_cyclic(slot):
    value = expression(slot, "[shared, shared]", "shared = [1]")
    assert value.wire["value"][0] == value.wire["value"][1]


def test_long_lists_are_quick(slot):
    outcome = slot.run(program("def f():\n    return [list(range(100000)), ['s%d' % i for i in range(100000)]]\n"))
    value = outcome.returned["result"].wire["value"]
    assert [len(each["value"]) for each in value] == [100000, 100000]
    assert value[1]["value"][-1] == {"type": "string", "value": "s99999"}


def test_large_parts(slot):
    value = expression(slot, "[bytes(range(256)) * 65536, np.arange(1 << 20)]", "import numpy as np")
    assert value.parts[0] == bytes(range(256)) * 65536 and len(value.parts[1]) == 8 << 20


def test_random_values_survive(slot):
    seed = random.randrange(2**32)
    print("seed", seed)
    source = random.Random(seed)

    def make(depth):
        kind = source.randrange(8 if depth < 5 else 5)
        if kind == 0:
            return source.choice([None, True, False])
        if kind == 1:
            return source.randrange(-(2 ** source.randrange(1, 200)), 2**60)
        if kind == 2:
            return struct.unpack("<d", struct.pack("<q", source.randrange(0x7FE << 52)))[0] * source.choice([1, -1])
        if kind in (3, 4):
            return "".join(
                chr(source.choice([source.randrange(0xD800), source.randrange(0xE000, 0x110000)])) for _ in range(5)
            )
        if kind in (5, 6):
            return [make(depth + 1) for _ in range(source.randrange(5))]
        return {"k%d" % i: make(depth + 1) for i in range(source.randrange(5))}

    def decode(wire):
        if wire["type"] == "array":
            return [decode(each) for each in wire["value"]]
        if wire["type"] == "object":
            return {name: decode(each) for name, each in wire["value"].items()}
        return wire.get("value")

    values = [make(0) for _ in range(50)]
    value = value_of(slot, "def f(x):\n    return x\n", values)
    assert decode(value.wire) == values


def test_a_failed_return_adds_nothing_and_keeps_the_others(slot):
    outcome = slot.run(
        [
            module("def good(): return b'first'\ndef bad(): return [b'second', object()]\n"),
            function("good"),
            function("bad"),
            run("good", id="g"),
            run("bad", id="b"),
            returns("g", "good"),
            returns("b", "bad"),
        ]
    )
    assert (
        list(outcome.returned) == ["good"] and outcome.error["kind"] == "serialization" and outcome.error["index"] == 6
    )
    assert outcome.types[-2:] == ["started", "failed"]


def test_values_are_captured_at_that_point(slot):
    source = "l = []\ndef f():\n    l.append(1)\n    return l\n"
    outcome = slot.run(
        [module(source), function("f"), run("f", id="a"), returns("a", "one"), run("f", id="b"), returns("a", "two")]
    )
    assert [len(outcome.returned[key].wire["value"]) for key in ("one", "two")] == [1, 2]


def test_functions_and_modules_cannot_be_returned(slot):
    for value in ("m", "f"):
        outcome = slot.run([module("f = 1\n"), function("f"), returns(value)])
        assert outcome.error["kind"] == "serialization"


def test_tensors_come_back_as_they_went(slot):
    for dtype, item in (("float32", 4), ("bool", 1), ("complex128", 16), ("uint16", 2), ("float16", 2)):
        for shape in ([2, 3], [], [0, 7], [1]):
            count = math.prod(shape)
            content = bytes([1]) * (count * item)
            upload = {
                "op": "upload",
                "id": "t",
                "kind": "tensor",
                "dtype": dtype,
                "shape": shape,
                "blob": digest(content),
            }
            value = slot.run([upload, returns("t")], [content], needs_lease=False).returned["result"]
            assert value.wire == {"type": "tensor", "dtype": dtype, "shape": shape, "part": 0} and value.parts == [
                content
            ]


def test_wire_text_is_json_without_extensions(slot):
    value = expression(slot, "{'text': 'line\\u2028', 'n': 1e22}")
    json.loads(value.text, parse_constant=lambda name: pytest.fail(name))
