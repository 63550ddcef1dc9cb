"""Returned values of every type, and the refusal of what is not exactly a value."""

import json

import numpy as np
import pytest
from fake_server import Answer, error, form_part, multipart, outcome, sha256

from kcoral import (
    Client,
    KCoralError,
    MalformedAnswerError,
    Program,
    ReturnedFile,
    ReturnedFolder,
    Tensor,
)
from kcoral import tensor as tensor_module


def program():
    small = Program()
    small.upload(kind="module", source="x = 1")
    return small


def execute(server, *steps):
    server.then(*steps)
    with Client(server.url) as client:
        return client.execute(program())


def returned(server, value, parts=None):
    return execute(server, outcome({"v": value}, parts)).results["v"]


def bytes_value(content, part=0):
    return {"type": "bytes", "part": f"return:{part}", "sha256": sha256(content)}


def file_value(content, part=0):
    return {"type": "file", "size": len(content), "part": f"return:{part}", "sha256": sha256(content)}


def tensor_value(dtype, shape, content, part=0):
    return {"type": "tensor", "dtype": dtype, "shape": shape, "part": f"return:{part}", "sha256": sha256(content)}


@pytest.mark.parametrize(
    ("wire", "value"),
    [
        ({"type": "null"}, None),
        ({"type": "boolean", "value": True}, True),
        ({"type": "integer", "value": -7}, -7),
        ({"type": "integer", "value": 2**200}, 2**200),
        ({"type": "number", "value": 3.5}, 3.5),
        ({"type": "number", "value": -0.0}, -0.0),
        ({"type": "string", "value": "größer \U0001f41a"}, "größer \U0001f41a"),
        ({"type": "array", "value": []}, []),
        ({"type": "array", "value": [{"type": "null"}, {"type": "integer", "value": 1}]}, [None, 1]),
        (
            {"type": "object", "value": {"b": {"type": "null"}, "a": {"type": "array", "value": []}}},
            {"b": None, "a": []},
        ),
    ],
)
def test_plain_values(server, wire, value):
    got = returned(server, wire)
    assert got == value and type(got) is type(value)
    if isinstance(value, dict):
        assert list(got) == list(value)


def test_an_integer_of_any_size(server):
    digits = "-" + "1234567890" * 2000

    def answer(request):
        made = outcome({"v": {"type": "integer", "value": 0}})(request)
        made.body = made.body.replace(b'"value": 0', b'"value": ' + digits.encode())
        return made

    got = execute(server, answer).results["v"]
    assert got % 10**10 == -1234567890 % 10**10
    assert got == -(1234567890 * (10**20000 - 1) // (10**10 - 1))


def test_the_deepest_nesting(server):
    wire = {"type": "null"}
    for _ in range(128):
        wire = {"type": "array", "value": [wire]}
    value = returned(server, wire)
    for _ in range(128):
        (value,) = value
    assert value is None

    with pytest.raises(MalformedAnswerError, match="nested"):
        returned(server, {"type": "array", "value": [{"type": "array", "value": [wire]}]})


def test_bytes_and_files(server):
    contents = [b"\x00\r\n--answer-boundar\r\n--\xff", b"", b"text\r\n"]
    values = {"a": bytes_value(contents[0], 0), "b": file_value(contents[1], 1), "c": file_value(contents[2], 2)}
    results = execute(server, outcome(values, contents)).results
    assert results["a"] == contents[0] and type(results["a"]) is bytes
    assert results["b"] == ReturnedFile(b"", sha256(b"")) and results["b"].size == 0
    assert results["c"].data == b"text\r\n" and results["c"].sha256 == sha256(b"text\r\n")


def test_a_large_part(server):
    content = np.random.default_rng(1).bytes(5_000_000)
    assert returned(server, bytes_value(content), [content]) == content


def test_values_inside_arrays_take_parts_in_order(server):
    wire = {
        "type": "array",
        "value": [bytes_value(b"first", 0), {"type": "object", "value": {"x": bytes_value(b"2", 1)}}],
    }
    assert returned(server, wire, [b"first", b"2"]) == [b"first", {"x": b"2"}]


@pytest.mark.parametrize("dtype", [name for name in tensor_module.ITEM_BYTES if name[:6] not in ("bfloat", "float8")])
def test_tensors_of_every_numpy_dtype(server, dtype):
    array = np.arange(6).astype(dtype).reshape(2, 3)
    got = returned(server, tensor_value(dtype, [2, 3], array.tobytes()), [array.tobytes()])
    assert got.dtype == array.dtype and got.shape == (2, 3)
    np.testing.assert_array_equal(got, array)
    got[0, 0] = 1  # the array belongs to the caller
    assert got.flags.c_contiguous and got.flags.aligned


@pytest.mark.parametrize("shape", [[], [0], [3, 0, 2]])
def test_tensors_without_dimensions_or_elements(server, shape):
    content = np.zeros(shape, np.float32).tobytes()
    got = returned(server, tensor_value("float32", shape, content), [content])
    assert got.shape == tuple(shape) and got.dtype == np.float32


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1)])
def test_tensors_that_numpy_alone_cannot_hold(server, dtype, size):
    content = bytes(range(4 * size))
    got = returned(server, tensor_value(dtype, [4], content), [content])
    try:
        import ml_dtypes
    except ImportError:
        assert got == Tensor(dtype, (4,), content)
    else:
        assert got.dtype == getattr(ml_dtypes, dtype) and got.tobytes() == content


def test_tensors_without_numpy(server, monkeypatch):
    monkeypatch.setattr(tensor_module, "numpy_module", lambda: None)
    got = returned(server, tensor_value("int16", [2], b"\x01\x00\x02\x00"), [b"\x01\x00\x02\x00"])
    assert got == Tensor("int16", (2,), b"\x01\x00\x02\x00")


def test_a_folder(server):
    wire = {
        "type": "folder",
        "files": {".hidden": file_value(b"h", 0), "a/b/c.txt": file_value(b"c", 1)},
        "directories": ["a", "a/b", "empty"],
    }
    folder = returned(server, wire, [b"h", b"c"])
    assert list(folder.files) == [".hidden", "a/b/c.txt"] and folder.directories == ("a", "a/b", "empty")
    assert folder.files["a/b/c.txt"].data == b"c"


FILE = file_value(b"c")


@pytest.mark.parametrize(
    "wire",
    [
        {"type": "mystery"},
        {"value": 1},
        {"type": ["null"]},
        [],
        {"type": "null", "value": None},
        {"type": "boolean", "value": 1},
        {"type": "integer", "value": True},
        {"type": "integer", "value": 1.0},
        {"type": "number", "value": "1"},
        {"type": "number", "value": True},
        {"type": "number", "value": 10**400},
        {"type": "string", "value": None},
        {"type": "string"},
        {"type": "array", "value": {}},
        {"type": "array", "value": [1]},
        {"type": "object", "value": []},
        {"type": "string", "value": "x", "encoding": "utf-8"},
        {**bytes_value(b"c"), "size": 1},
        {**bytes_value(b"c"), "sha256": sha256(b"d")},
        {**bytes_value(b"c"), "part": "return:1"},
        {**bytes_value(b"c"), "part": 0},
        {**FILE, "size": 2},
        {**FILE, "size": True},
        {**FILE, "path": "x"},
        {"type": "file", "size": 1, "part": "return:0"},
        tensor_value("float15", [1], b"c"),
        tensor_value("uint8", [2], b"c"),
        tensor_value("uint8", [-1], b"c"),
        tensor_value("uint8", [True], b"c"),
        tensor_value("uint8", 1, b"c"),
        {**tensor_value("uint8", [1], b"c"), "device": "cpu"},
        {"type": "folder", "files": {"../c": FILE}, "directories": []},
        {"type": "folder", "files": {"a/../c": FILE}, "directories": ["a", "a/.."]},
        {"type": "folder", "files": {"/c": FILE}, "directories": []},
        {"type": "folder", "files": {"a//c": FILE}, "directories": ["a"]},
        {"type": "folder", "files": {"a/c": FILE}, "directories": []},
        {"type": "folder", "files": {"c": FILE}, "directories": ["c"]},
        {"type": "folder", "files": {"c": FILE}, "directories": ["b", "a"]},
        {"type": "folder", "files": {"c": FILE}, "directories": ["a", "a"]},
        {"type": "folder", "files": {"c": {**FILE, "size": 9}}, "directories": []},
        {"type": "folder", "files": {"c": bytes_value(b"c")}, "directories": []},
        {"type": "folder", "files": [], "directories": []},
        {"type": "folder", "files": {"c": FILE}},
    ],
    ids=lambda wire: json.dumps(wire)[:60],
)
def test_what_is_no_value_is_refused(server, wire):
    parts = [b"c"] if "return:" in json.dumps(wire) else None
    with pytest.raises(MalformedAnswerError):
        returned(server, wire, parts)


@pytest.mark.parametrize(
    "change",
    [
        {"cached": True},
        {"stdout": ...},
        {"stdout": None},
        {"stdout_truncated": 0},
        {"queue_ms": -1},
        {"queue_ms": "1"},
        {"elapsed_ms": True},
        {"elapsed_ms": 10**400},
        {"results": []},
        {"status": "DONE"},
        {"status": 1},
        {"status": ...},
        {"status": "ERROR"},
        {"status": "FAILED"},
        {"request_id": "00000000-0000-4000-8000-000000000000"},
        {"request_id": ...},
        {"gpu_count": 2},
        {"gpu_count": 2, "gpu_ids": ["0", "1"]},
        {"error": None},
        {"error": {"kind": "runtime", "message": "m"}},
    ],
    ids=str,
)
def test_what_is_no_outcome_is_refused(server, change):
    with pytest.raises(MalformedAnswerError) as caught:
        execute(server, outcome(**change))
    assert caught.value.http_status == 200
    assert caught.value.request_id == server.requests[0].id
    assert server.url in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", b'{"status":"COMPLETED","status":"COMPLETED"}', b'{"status":NaN}', b'{"status":1e999}']
    + [b"\xff", b"[" * 100_000, b"<html>"],
    ids=lambda body: repr(body[:40]),
)
def test_what_is_no_strict_json_is_refused(server, body):
    with pytest.raises(MalformedAnswerError):
        execute(server, lambda request: Answer(200, body))


def test_an_answer_of_another_type_is_quoted(server):
    with pytest.raises(MalformedAnswerError, match="text/html.*Bad gateway"):
        execute(server, lambda request: Answer(502, b"<h1>Bad gateway</h1>", "text/html"))


def test_an_error_status_needs_an_error_document(server):
    with pytest.raises(MalformedAnswerError, match="does not go with HTTP 500"):
        execute(server, lambda request: Answer(500, outcome()(request).body))
    with pytest.raises(MalformedAnswerError, match="does not go with HTTP 200"):
        execute(server, error("busy", "later", 200))


RESULT = form_part("result", "application/json", b"DOCUMENT")
PART = form_part("return:0", "application/octet-stream", b"c")
END = b"--answer-boundary--\r\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        RESULT,
        RESULT + PART,
        RESULT + END,
        PART + RESULT + END,
        RESULT + PART + PART + END,
        RESULT + PART + RESULT + END,
        b"preamble\r\n" + RESULT + PART + END,
        RESULT + PART + END + b"epilogue",
        RESULT + form_part("return:1", "application/octet-stream", b"c") + END,
        RESULT + form_part("return:0", "text/plain", b"c") + END,
        form_part("result", "text/plain", b"DOCUMENT") + PART + END,
        RESULT + PART.replace(b"form-data", b"attachment") + END,
        RESULT + PART.replace(b'; name="return:0"', b"") + END,
        RESULT + PART.replace(b'name="return:0"', b'name="return:0"; name="return:0"') + END,
        RESULT + PART.replace(b"Content-Type", b"Content Type") + END,
        RESULT + PART.replace(b"Content-Type", b"Content-Disposition") + END,
        RESULT + PART.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 10_000 + b"\r\n\r\n") + END,
        (RESULT + PART + END).replace(b"\r\n", b"\n"),
        (RESULT + PART + END)[:-4],
    ],
    ids=range(20),
)
def test_what_is_no_strict_multipart_is_refused(server, body):
    def answer(request):
        document = outcome({"v": bytes_value(b"c")})(request).body
        made = multipart(document, [b"c"])
        assert made.body.replace(document, b"DOCUMENT") == RESULT + PART + END
        made.body = body.replace(b"DOCUMENT", document)
        return made

    with pytest.raises(MalformedAnswerError):
        execute(server, answer)


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=a"]
)
def test_a_multipart_answer_needs_its_boundary(server, content_type):
    with pytest.raises(MalformedAnswerError):
        execute(server, lambda request: Answer(200, RESULT + PART + END, content_type))


def test_parts_may_be_quoted_and_carry_other_headers(server):
    def answer(request):
        made = outcome({"v": bytes_value(b"c")}, [b"c"])(request)
        made.content_type = 'Multipart/Form-Data; Boundary="answer-boundary"'
        made.body = made.body.replace(b"Content-Type", b"X-Other: 1\r\ncontent-type")
        return made

    assert execute(server, answer).results == {"v": b"c"}


def test_an_instruction_error(server):
    failure = {
        "kind": "correctness",
        "message": "not close",
        "instruction_index": 4,
        "instruction_op": "run",
        "instruction_id": "check",
        "traceback": "Traceback ...\n",
    }
    result = execute(
        server, outcome({"before": {"type": "integer", "value": 1}}, error=failure, stdout="out", stderr="err")
    )
    assert not result.completed and result.status == "FAILED"
    assert result.results == {"before": 1}
    assert (result.stdout, result.stderr) == ("out", "err")
    assert (result.queue_ms, result.elapsed_ms, result.lease_wait_ms, result.lease_held_ms) == (1.5, 20.25, 0.0, 0.0)
    assert result.error.kind == "correctness" and result.error.traceback == "Traceback ...\n"
    assert str(result.error) == "correctness error in instruction 4 (run 'check'): not close"

    of_return = execute(server, outcome(error={**failure, "instruction_op": "return", "instruction_id": None}))
    assert "(return)" in str(of_return.error)


def test_a_gpu_access_error_says_more(server):
    failure = {
        "kind": "gpu_access",
        "message": "CUDA use in a cpu_only run",
        "instruction_index": 1,
        "instruction_op": "run",
        "instruction_id": "r",
        "traceback": "",
        "cuda_call": "cuInit",
        "location": "kernel.py:3",
        "interfered_request_id": None,
    }
    result = execute(server, outcome(error=failure))
    assert result.error.cuda_call == "cuInit" and result.error.interfered_request_id is None
    with pytest.raises(MalformedAnswerError):
        execute(server, outcome(error={**failure, "kind": "runtime"}))


def test_several_gpus(server):
    result = execute(server, outcome(gpu_count=2, gpu_ids=[0, 3]))
    assert (result.gpu_count, result.gpu_ids) == (2, (0, 3))
    assert execute(server, outcome()).gpu_ids is None


class TestSaving:
    def test_a_file(self, tmp_path):
        file = ReturnedFile(b"new", sha256(b"new"))
        file.save(tmp_path / "f")
        assert (tmp_path / "f").read_bytes() == b"new"
        with pytest.raises(FileExistsError):
            ReturnedFile(b"other", "").save(tmp_path / "f")
        assert (tmp_path / "f").read_bytes() == b"new"
        ReturnedFile(b"other", "").save(tmp_path / "f", overwrite=True)
        assert (tmp_path / "f").read_bytes() == b"other"
        assert [path.name for path in tmp_path.iterdir()] == ["f"]

    def test_a_symlink_is_replaced_and_never_followed(self, tmp_path):
        (tmp_path / "target").write_bytes(b"precious")
        (tmp_path / "link").symlink_to("target")
        file = ReturnedFile(b"new", "")
        with pytest.raises(FileExistsError):
            file.save(tmp_path / "link")
        file.save(tmp_path / "link", overwrite=True)
        assert (tmp_path / "target").read_bytes() == b"precious"
        assert not (tmp_path / "link").is_symlink()

    def test_a_folder_merges(self, tmp_path):
        folder = ReturnedFolder({"a/b/c": ReturnedFile(b"c", "")}, ("a", "a/b", "empty"))
        (tmp_path / "out" / "a").mkdir(parents=True)
        (tmp_path / "out" / "a" / "mine").write_bytes(b"mine")
        folder.save(tmp_path / "out")
        assert (tmp_path / "out/a/b/c").read_bytes() == b"c"
        assert (tmp_path / "out/a/mine").read_bytes() == b"mine"
        assert (tmp_path / "out/empty").is_dir()

    def test_a_folder_that_would_overwrite_saves_nothing(self, tmp_path):
        folder = ReturnedFolder({"a": ReturnedFile(b"1", ""), "d/b": ReturnedFile(b"2", "")}, ("d",))
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "b").write_bytes(b"precious")
        with pytest.raises(FileExistsError):
            folder.save(tmp_path)
        assert not (tmp_path / "a").exists()
        folder.save(tmp_path, overwrite=True)
        assert (tmp_path / "d" / "b").read_bytes() == b"2"

    def test_a_folder_never_leaves_its_directory(self, tmp_path):
        outside = tmp_path / "outside"
        outside.mkdir()
        inside = tmp_path / "inside"
        inside.mkdir()
        (inside / "d").symlink_to(outside)
        with pytest.raises(NotADirectoryError):
            ReturnedFolder({"d/x": ReturnedFile(b"x", "")}, ("d",)).save(inside, overwrite=True)
        for path in ("../x", "/x", "d/../../x", "", "."):
            with pytest.raises(KCoralError):
                ReturnedFolder({path: ReturnedFile(b"x", "")}, ()).save(inside)
        assert list(outside.iterdir()) == [] and not (tmp_path / "x").exists()
