"""Programs: what they render to, and which mistakes they refuse on the spot."""

import array
import enum
import json
import os

import numpy as np
import pytest
from fake_server import sha256

from kcoral import Program, ProgramError, Tensor
from kcoral import tensor as tensor_module


def instructions(program):
    return json.loads(program.to_json())["instructions"]


def test_every_instruction():
    program = Program()
    module = program.upload(id="m", kind="module", source="def f(x): return x")
    cuda = program.upload(id="c", kind="module", source="__global__", language="cuda")
    program.upload(id="t", kind="tensor", value=np.arange(3, dtype=np.int16))
    data = program.upload(id="b", kind="bytes", value=bytearray(b"abc"))
    program.upload(id="f", kind="file", value=b"abc", path="./in//x.bin")
    program.upload(id="l", kind="library", value=memoryview(b"ELF"))
    f = program.get_function(id="fn", module=module, name="f", cpu_only=True)
    program.get_function(id="src", module=cuda, name="kernel")
    r = program.run(id="r", fn=f, args=[data, [1, {"k": None}], 2.5])
    program.run(id="none", fn=f)
    program.return_(key="value", value=r)
    program.return_file(key="file", path="in/x.bin")
    program.return_folder(key="folder", path=r)

    tensor_blob = sha256(b"\x00\x00\x01\x00\x02\x00")
    assert instructions(program) == [
        {"op": "upload", "id": "m", "kind": "module", "source": "def f(x): return x"},
        {"op": "upload", "id": "c", "kind": "module", "source": "__global__", "language": "cuda"},
        {"op": "upload", "id": "t", "kind": "tensor", "blob": tensor_blob, "dtype": "int16", "shape": [3]},
        {"op": "upload", "id": "b", "kind": "bytes", "blob": sha256(b"abc")},
        {"op": "upload", "id": "f", "kind": "file", "blob": sha256(b"abc"), "path": "in/x.bin"},
        {"op": "upload", "id": "l", "kind": "library", "blob": sha256(b"ELF")},
        {"op": "get_function", "id": "fn", "module": {"$ref": "m"}, "name": "f", "cpu_only": True},
        {"op": "get_function", "id": "src", "module": {"$ref": "c"}, "name": "kernel"},
        {"op": "run", "id": "r", "fn": {"$ref": "fn"}, "args": [{"$ref": "b"}, [1, {"k": None}], 2.5]},
        {"op": "run", "id": "none", "fn": {"$ref": "fn"}},
        {"op": "return", "key": "value", "value": {"$ref": "r"}},
        {"op": "return", "kind": "file", "key": "file", "path": "in/x.bin"},
        {"op": "return", "kind": "folder", "key": "folder", "path": {"$ref": "r"}},
    ]
    # Equal content is one blob.
    assert list(program.blobs) == [tensor_blob, sha256(b"abc"), sha256(b"ELF")]
    assert len(program) == 13


def build(ids):
    program = Program()
    module = program.upload(kind="module", source="x", id=ids.get("module"))
    fn = program.get_function(module=module, name="x", id=ids.get("fn"))
    program.return_(key="k", value=program.run(fn=fn, args=[fn], id=ids.get("run")))
    return program


def test_the_same_calls_make_the_same_bytes():
    assert build({}).to_json({"timeout_seconds": 3}) == build({}).to_json({"timeout_seconds": 3})
    assert json.loads(build({}).to_json({"labels": {"b": "1", "a": "2"}}))["options"] == {
        "labels": {"b": "1", "a": "2"}
    }
    assert "options" not in json.loads(build({}).to_json())


def test_automatic_ids_step_aside_for_given_ones():
    taken = [handle["id"] for handle in instructions(build({})) if "id" in handle]
    assert len(set(taken)) == 3
    for later in ("fn", "run"):
        for collision in taken:
            ids = [step["id"] for step in instructions(build({later: collision})) if "id" in step]
            assert len(set(ids)) == 3 and ids[{"fn": 1, "run": 2}[later]] == collision

    program = Program()
    automatic = program.upload(kind="module", source="x")
    given = program.upload(kind="module", source="y", id=automatic.id)
    program.return_(key="k", value=automatic)
    assert instructions(program)[2]["value"] == {"$ref": automatic.id}
    assert automatic.id != given.id


def test_arguments_are_copied_when_given():
    program = build({})
    fn = program.get_function(module=program.upload(kind="module", source="x"), name="x")
    argument, buffer, numbers = [1], bytearray(b"1"), np.ones(1)
    program.run(fn=fn, args=[argument])
    program.upload(kind="bytes", value=buffer)
    program.upload(kind="tensor", value=numbers)
    before = program.to_json()
    argument.append(2)
    buffer[0] = 0
    numbers[0] = 7
    assert program.to_json() == before
    assert [sha256(b"".join(blob.pieces())) for blob in program.blobs.values()] == list(program.blobs)


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (10**20, "100000000000000000000"),
        (-(10**5000), "-1" + "0" * 5000),
        (0, "0"),
        (True, "true"),
        (-0.0, "-0.0"),
        (1e300, "1e+300"),
        (0.1, "0.1"),
        ("ä\n\x00\u2028", '"ä\\n\\u0000\u2028"'),
        ((1, (2,)), "[1,[2]]"),
        ({"z": 1, "a": {}}, '{"z":1,"a":{}}'),
        (Colour.RED, "3"),
        (np.float32(0.5), "0.5"),
        (np.int8(-3), "-3"),
        (np.bool_(True), "true"),
    ],
    ids=lambda value: str(type(value)) + repr(value)[:10] if not isinstance(value, int) else "integer",
)
def test_literals_keep_their_exact_value(value, text):
    program = Program()
    fn = program.upload(kind="module", source="x")
    program.run(fn=fn, args=[value])
    assert f'"args":[{text}]' in program.to_json()


@pytest.mark.parametrize(
    ("value", "exception"),
    [
        (float("nan"), ProgramError),
        ([float("inf")], ProgramError),
        ("\ud800", ProgramError),
        ({"a": {1: 2}}, TypeError),
        (b"bytes", TypeError),
        ({1, 2}, TypeError),
        (np.ones(3), TypeError),
        (1j, TypeError),
        ({"$ref": "x"}, ProgramError),
    ],
    ids=repr,
)
def test_what_is_no_literal_is_refused(value, exception):
    program = build({})
    fn = program.upload(kind="module", source="x")
    before = program.to_json()
    with pytest.raises(exception, match=r"args\[1\]"):
        program.run(fn=fn, args=[0, value])
    assert program.to_json() == before


def test_literals_nest_128_deep():
    value = 1
    for _ in range(128):
        value = [value]
    program = Program()
    fn = program.upload(kind="module", source="x")
    program.run(fn=fn, args=[value])
    with pytest.raises(ProgramError, match="128"):
        program.run(fn=fn, args=[[value]])


def test_handles_are_whole_arguments_of_their_own_program():
    program, other = Program(), Program()
    fn = program.upload(kind="module", source="x")
    foreign = other.upload(kind="module", source="x")
    with pytest.raises(TypeError, match="args"):
        program.run(fn=fn, args=[[fn]])
    for call in (
        lambda: program.run(fn=foreign),
        lambda: program.run(fn=fn, args=[foreign]),
        lambda: program.get_function(module=foreign, name="x"),
        lambda: program.return_(key="k", value=foreign),
        lambda: program.return_file(key="k", path=foreign),
    ):
        with pytest.raises(ProgramError, match="another program"):
            call()
    with pytest.raises(TypeError, match="handle"):
        program.run(fn="x")
    assert len(program) == 1


@pytest.mark.parametrize(
    ("arguments", "exception"),
    [
        ({"kind": "code", "source": "x"}, ProgramError),
        ({"kind": "module"}, TypeError),
        ({"kind": "module", "source": b"x"}, TypeError),
        ({"kind": "module", "source": "x", "value": b"x"}, TypeError),
        ({"kind": "module", "source": "x", "language": "rust"}, ProgramError),
        ({"kind": "module", "source": "\ud800"}, ProgramError),
        ({"kind": "bytes", "value": "text"}, TypeError),
        ({"kind": "bytes", "value": b"x", "path": "p"}, TypeError),
        ({"kind": "file", "value": b"x"}, TypeError),
        ({"kind": "library", "value": 3}, TypeError),
        ({"kind": "tensor", "value": [1, 2]}, TypeError),
        ({"kind": "tensor", "value": b"x"}, TypeError),
        ({"kind": "tensor", "value": b"x", "dtype": "uint8"}, TypeError),
        ({"kind": "tensor", "value": b"xx", "dtype": "uint8", "shape": [1]}, ProgramError),
        ({"kind": "tensor", "value": b"x", "dtype": "float15", "shape": [1]}, ProgramError),
        ({"kind": "tensor", "value": b"", "dtype": "uint8", "shape": [-1]}, ProgramError),
        ({"kind": "tensor", "value": np.ones(1), "dtype": "float32"}, TypeError),
        ({"kind": "tensor", "value": np.array(["a"])}, TypeError),
        ({"kind": "tensor", "value": np.ones(1, np.longdouble)}, TypeError),
        ({"kind": "module", "source": "x", "id": ""}, ProgramError),
        ({"kind": "module", "source": "x", "id": 3}, TypeError),
    ],
    ids=str,
)
def test_wrong_uploads_are_refused(arguments, exception):
    program = Program()
    with pytest.raises(exception):
        program.upload(**arguments)
    assert len(program) == 0 and not program.blobs


def test_doubled_names_are_refused():
    program = Program()
    module = program.upload(kind="module", source="x", id="m")
    program.return_(key="k", value=module)
    with pytest.raises(ProgramError, match="'m' is used twice"):
        program.upload(kind="module", source="x", id="m")
    with pytest.raises(ProgramError, match="'k' is returned twice"):
        program.return_file(key="k", path="x")
    with pytest.raises(ProgramError, match="no instructions"):
        Program().to_json()


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "/",
        "/etc/passwd",
        "..",
        "a/../b",
        "a\\b",
        "a\0b",
        "x" * 256,
        "é" * 128,
        "/".join(["d" * 200] * 21),
        "\ud800",
    ],
    ids=lambda path: repr(path[:20]),
)
def test_bad_paths_are_refused(path):
    program = Program()
    with pytest.raises(ProgramError):
        program.upload(kind="file", value=b"", path=path)
    with pytest.raises(ProgramError):
        program.return_folder(key="k", path=path)


def test_overlapping_paths_are_refused():
    program = Program()
    program.upload(kind="file", value=b"", path="a/b")
    for path in ("a/b", "./a//b", "a", "a/b/c"):
        with pytest.raises(ProgramError, match="path"):
            program.upload(kind="file", value=b"", path=path)
    program.upload(kind="file", value=b"", path="a/c")
    program.upload(kind="file", value=b"", path="ab")


class Dlpack:
    """Something that speaks only DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class ArrayLike:
    def __array__(self, dtype=None, copy=None):
        return np.array([[1, 2]], np.uint16)


class TestTensors:
    @pytest.mark.parametrize(
        ("value", "dtype", "shape", "data"),
        [
            (np.array([[1, 2], [3, 4]], np.uint8).T, "uint8", (2, 2), b"\x01\x03\x02\x04"),
            (np.arange(6, dtype=np.uint8)[::2], "uint8", (3,), b"\x00\x02\x04"),
            (np.array([1, 256], ">i2"), "int16", (2,), b"\x01\x00\x00\x01"),
            (np.array(True), "bool", (), b"\x01"),
            (np.zeros((0, 4), np.complex64), "complex64", (0, 4), b""),
            (np.float64(1), "float64", (), np.float64(1).tobytes()),
            (ArrayLike(), "uint16", (1, 2), b"\x01\x00\x02\x00"),
            (Dlpack(np.array([5], np.int32)), "int32", (1,), b"\x05\x00\x00\x00"),
            (array.array("i", [7]), "int32", (1,), b"\x07\x00\x00\x00"),
            (memoryview(array.array("d", [0.0])), "float64", (1,), b"\0" * 8),
            (Tensor("bfloat16", (1,), b"\x80\x3f"), "bfloat16", (1,), b"\x80\x3f"),
        ],
        ids=range(11),
    )
    def test_every_source(self, value, dtype, shape, data):
        assert tensor_module.encode(value) == Tensor(dtype, shape, data)

    @pytest.mark.parametrize("dtype", tensor_module.ITEM_BYTES)
    def test_raw_bytes_of_every_dtype(self, dtype):
        content = bytes(6 * tensor_module.ITEM_BYTES[dtype])
        program = Program()
        program.upload(kind="tensor", value=content, dtype=dtype, shape=(2, 3))
        (step,) = instructions(program)
        assert (step["dtype"], step["shape"], step["blob"]) == (dtype, [2, 3], sha256(content))

    @pytest.mark.parametrize(
        "dtype", [name for name in tensor_module.ITEM_BYTES if name[:6] not in ("bfloat", "float8")]
    )
    def test_numpy_arrays_of_every_dtype(self, dtype):
        value = np.arange(4).astype(dtype)
        assert tensor_module.encode(value) == Tensor(dtype, (4,), value.tobytes())

    @pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
    def test_ml_dtypes(self, dtype):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        value = np.arange(4).astype(getattr(ml_dtypes, dtype))
        tensor = tensor_module.encode(value)
        assert tensor == Tensor(dtype, (4,), value.tobytes())
        decoded = tensor_module.decode(dtype, (4,), memoryview(bytearray(tensor.data)))
        np.testing.assert_array_equal(decoded.astype(np.float32), value.astype(np.float32))

    @pytest.mark.parametrize("dtype", tensor_module.ITEM_BYTES)
    def test_torch_tensors_of_every_dtype(self, dtype):
        torch = pytest.importorskip("torch")
        if not hasattr(torch, dtype):
            pytest.skip(f"this PyTorch has no {dtype}")
        value = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype)).T
        tensor = tensor_module.encode(value)
        assert (tensor.dtype, tensor.shape) == (dtype, (3, 2))
        back = torch.frombuffer(bytearray(tensor.data), dtype=getattr(torch, dtype)).reshape(3, 2)
        assert torch.equal(back.to(torch.complex128), value.to(torch.complex128))
        assert tensor_module.encode(value[:0]).data == b""

    def test_without_numpy(self, monkeypatch):
        monkeypatch.setattr(tensor_module, "numpy_module", lambda: None)
        assert tensor_module.encode(array.array("H", [1])) == Tensor("uint16", (1,), b"\x01\x00")
        with pytest.raises(TypeError, match="no tensor"):
            tensor_module.encode(3)


class TestFiles:
    def test_a_file_keeps_its_name_or_takes_another(self, tmp_path):
        (tmp_path / "in.txt").write_bytes(b"abc")
        program = Program()
        program.upload_file(tmp_path / "in.txt")
        program.upload_file(str(tmp_path / "in.txt"), "deep/other.txt", id="other")
        first, second = instructions(program)
        assert (first["path"], second["path"], second["id"]) == ("in.txt", "deep/other.txt", "other")
        assert list(program.blobs) == [sha256(b"abc")]

    def test_a_folder(self, tmp_path):
        (tmp_path / "b" / "c").mkdir(parents=True)
        (tmp_path / "empty").mkdir()
        (tmp_path / "b" / "c" / "x").write_bytes(b"1")
        (tmp_path / ".hidden").write_bytes(b"2")
        program = Program()
        handles = program.upload_folder(tmp_path, "in")
        assert list(handles) == ["in/.hidden", "in/b/c/x"]
        assert [step["path"] for step in instructions(program)] == list(handles)
        assert [step["id"] for step in instructions(program)] == [handle.id for handle in handles.values()]
        assert list(Program().upload_folder(tmp_path)) == [".hidden", "b/c/x"]

    def test_links_and_special_files_are_refused(self, tmp_path):
        program = Program()
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "a").write_bytes(b"1")
        (tmp_path / "d" / "link").symlink_to("a")
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(ProgramError, match="symlink"):
            program.upload_folder(tmp_path / "d")
        with pytest.raises(ProgramError, match="neither a file"):
            program.upload_folder(tmp_path)
        with pytest.raises(ProgramError, match="symlink"):
            program.upload_file(tmp_path / "d" / "link")
        with pytest.raises(ProgramError, match="regular"):
            program.upload_file(tmp_path / "fifo")
        with pytest.raises(FileNotFoundError):
            program.upload_file(tmp_path / "none")
        with pytest.raises(NotADirectoryError):
            program.upload_folder(tmp_path / "d" / "a")
        assert len(program) == 0

    def test_a_folder_that_overlaps_uploads_nothing(self, tmp_path):
        (tmp_path / "a").write_bytes(b"1")
        (tmp_path / "b").write_bytes(b"2")
        program = Program()
        program.upload(kind="file", value=b"", path="b")
        with pytest.raises(ProgramError, match="'b' is uploaded twice"):
            program.upload_folder(tmp_path)
        assert len(program) == 1

    @pytest.mark.parametrize("change", ["other", "longer content", "", None])
    def test_a_file_that_changes_later_is_noticed(self, tmp_path, change):
        path = tmp_path / "x"
        path.write_text("first")
        program = Program()
        program.upload_file(path)
        (blob,) = program.blobs.values()
        assert b"".join(blob.pieces()) == b"first"
        if change is None:
            path.unlink()
        else:
            path.write_text(change)
            os.utime(path, ns=(1, 1))
        with pytest.raises(ProgramError, match=str(path)):
            b"".join(blob.pieces())
