"""Contract section 3: what the instructions do."""

from __future__ import annotations

import array
import uuid

import pytest

from harness import Folder, Program, Server, Tensor


class TestUpload:
    def test_a_module_knows_its_own_source(self, server: Server):
        source = "import inspect\n\ndef main():\n    return inspect.getsource(main)\n"
        assert server.run(source).value() == "def main():\n    return inspect.getsource(main)\n"

    def test_a_traceback_names_the_module_and_shows_its_lines(self, server):
        error = server.run("def main():\n    return inner()\n\ndef inner():\n    return 1 // 0  # here\n").error
        assert error["kind"] == "runtime" and "by zero" in error["message"]
        assert "return 1 // 0  # here" in error["traceback"] and "line 5, in inner" in error["traceback"]
        assert "/kcoral/python" not in error["traceback"], "frames of the runtime itself are left out"

    def test_bytes(self, server):
        program = Program()
        handle = program.add("upload", id="b", kind="bytes", blob=program.blob(b"\0\1\xff"))
        program.give("type", program.call(program.module("def main(b):\n    return type(b).__name__\n"), "main", [handle]))
        program.give("bytes", handle)
        result = server.execute(program)
        assert result.values == {"type": "bytes", "bytes": b"\0\1\xff"}

    def test_an_empty_blob(self, server):
        program = Program()
        program.give("bytes", program.add("upload", id="b", kind="bytes", blob=program.blob(b"")))
        assert server.execute(program).value("bytes") == b""

    def test_a_file_has_the_modes_of_the_contract(self, server):
        program = Program()
        path = program.add("upload", id="f", kind="file", blob=program.blob(b"text"), path="./data//x.txt")
        source = (
            "import os\ndef main(path):\n"
            "    return [path, open(path).read(), oct(os.stat(path).st_mode), oct(os.stat('data').st_mode)]\n"
        )
        program.give("seen", program.call(program.module(source), "main", [path]))
        program.give("handle", path)
        result = server.execute(program)
        assert result.value("seen") == ["data/x.txt", "text", "0o100600", "0o40700"]
        assert result.value("handle") == "data/x.txt"

    def test_uploaded_files_can_be_imported(self, server):
        program = Program()
        for path, text in {"pkg/__init__.py": "from .inner import answer\n", "pkg/inner.py": "answer = 42\n"}.items():
            program.add("upload", id=path, kind="file", blob=program.blob(text.encode()), path=path)
        program.give("value", program.call(program.module("import pkg\ndef main():\n    return pkg.answer\n"), "main"))
        assert server.execute(program).value() == 42

    def test_a_tensor_is_a_numpy_array_where_there_is_no_torch(self, server):
        if "torch" in server.health()["versions"]:
            pytest.skip("PyTorch is installed here")
        data = array.array("f", [1, 2, 3, 4, 5, 6]).tobytes()
        program = Program()
        handle = program.add("upload", id="t", kind="tensor", blob=program.blob(data), dtype="float32", shape=[2, 3])
        source = "def main(t):\n    t *= 2\n    return [type(t).__module__, str(t.dtype), list(t.shape), float(t.sum())]\n"
        program.give("seen", program.call(program.module(source), "main", [handle]))
        program.give("tensor", handle)
        result = server.execute(program)
        assert result.value("seen") == ["numpy", "float32", [2, 3], 42.0]
        doubled = array.array("f", [2, 4, 6, 8, 10, 12]).tobytes()
        assert result.value("tensor") == Tensor("float32", [2, 3], doubled)

    @pytest.mark.parametrize("shape", [[], [0], [3, 0, 2]])
    def test_tensors_of_no_dimension_or_no_element(self, server, shape):
        data = b"\0" * (8 if shape == [] else 0)
        program = Program()
        handle = program.add("upload", id="t", kind="tensor", blob=program.blob(data), dtype="int64", shape=shape)
        program.give("tensor", handle)
        assert server.execute(program).value("tensor") == Tensor("int64", shape, data)

    def test_a_library_without_tvm_ffi_is_unavailable(self, server):
        if "tvm_ffi" in server.health()["versions"]:
            pytest.skip("TVM FFI is installed here")
        program = Program()
        program.add("upload", id="lib", kind="library", blob=program.blob(b"\x7fELF"))
        error = server.execute(program).error
        assert error["kind"] == "unavailable" and "TVM FFI" in error["message"]


class TestGetFunction:
    def test_any_object_of_the_module(self, server):
        program = Program()
        module = program.module("NUMBERS = [1, 2]\ndef main(x):\n    return x\n")
        numbers = program.add("get_function", id="n", module=module, name="NUMBERS")
        program.give("value", program.call(module, "main", [numbers]))
        assert server.execute(program).value() == [1, 2]

    def test_cuda_source_is_a_descriptor(self, server):
        source = '__global__ void k() {}\nvoid launch() { k<<<1, 1>>>(); }\n// "ünïcode"\n'
        program = Program()
        module = program.add("upload", id="cu", kind="module", source=source, language="cuda")
        descriptor = program.add("get_function", id="k", module=module, name="launch")
        look = program.module("def main(d):\n    return [d.name, d.source]\n")
        program.give("value", program.call(look, "main", [descriptor]))
        assert server.execute(program).value() == ["launch", source]


class TestRun:
    def test_top_level_references_pass_values_and_nested_ones_are_literals(self, server):
        program = Program()
        module = program.module("def make():\n    return {'a': (1, 2)}\n\ndef echo(*args):\n    return list(args)\n")
        made = program.call(module, "make")
        program.give("value", program.call(module, "echo", [made, [made], {"x": made}, {"$ref": "r", "more": 1}]))
        assert server.execute(program).value() == [
            {"a": [1, 2]}, [made], {"x": made}, {"$ref": "r", "more": 1},
        ]  # fmt: skip

    def test_literals_keep_value_and_order(self, server):
        literals = [10**400, -(2**64), 2**63, 0.1, -0.0, 1e-320, {"z": 1, "a": [None, True]}, "\u2028\U0001f600"]
        source = "def main(*args):\n    assert list(args[6]) == ['z', 'a']\n    return list(args)\n"
        value = server.run(source, args=literals).value()
        assert value == literals and list(value[6]) == ["z", "a"] and str(value[4]) == "-0.0"

    def test_without_args(self, server):
        assert server.run("def main():\n    return 'none'\n").value() == "none"

    def test_the_result_of_a_run_can_be_called(self, server):
        program = Program()
        adder = program.call(program.module("def make(n):\n    return lambda x: x + n\n"), "make", [40])
        program.give("value", program.add("run", id="sum", fn=adder, args=[2]))
        assert server.execute(program).value() == 42

    def test_cpu_only_runs_like_any_other_on_a_cpu_server(self, server):
        program = Program()
        program.give("value", program.call(program.module("def main():\n    return 1\n"), "main", cpu_only=True))
        result = server.execute(program)
        assert result.value() == 1 and result.document["lease_held_ms"] == 0


class TestReturn:
    def test_captures_the_value_at_that_point(self, server):
        program = Program()
        module = program.module("def make():\n    return [1]\n\ndef grow(x):\n    x.append(2)\n")
        made = program.call(module, "make")
        program.give("before", made)
        program.call(module, "grow", [made])
        program.give("after", made)
        assert server.execute(program).values == {"before": [1], "after": [1, 2]}

    def test_what_was_returned_stays_when_a_later_instruction_fails(self, server):
        program = Program()
        module = program.module("def one():\n    print('so far')\n    return b'1'\n\ndef fail():\n    raise ValueError('no')\n")
        program.give("one", program.call(module, "one"))
        program.give("two", program.call(module, "fail", id="second"))
        result = server.execute(program)
        assert result.status == "FAILED" and result.values == {"one": b"1"} and result.stdout == "so far\n"
        assert (result.error["kind"], result.error["message"]) == ("runtime", "no")
        assert (result.error["instruction_op"], result.error["instruction_id"]) == ("run", "second")

    def test_a_file_and_a_folder(self, server):
        source = (
            "import os\ndef main():\n"
            "    os.makedirs('out/empty/deep'); os.makedirs('out/b')\n"
            "    for name in ('.hidden', 'b/x', 'a.txt'): open('out/' + name, 'w').write(name)\n"
            "    os.chdir('/tmp')\n    return 'out'\n"
        )
        program = Program()
        path = program.call(program.module(source), "main")
        program.add("return", key="file", kind="file", path="out/./a.txt")
        program.add("return", key="folder", kind="folder", path=path)
        result = server.execute(program)
        assert result.value("file") == b"a.txt"
        assert result.value("folder") == Folder(
            {".hidden": b".hidden", "a.txt": b"a.txt", "b/x": b"b/x"}, ["b", "empty", "empty/deep"]
        )

    @pytest.mark.parametrize(
        "prepare, kind",
        [
            ("os.symlink('/etc/passwd', 'x')", "file"),
            ("os.symlink('/etc', 'x')", "folder"),
            ("os.mkfifo('x')", "file"),
            ("os.mkdir('x'); os.symlink('/etc/passwd', 'x/link')", "folder"),
            ("os.mkdir('x'); os.mkfifo('x/pipe')", "folder"),
            ("os.mkdir('x'); open(b'x/\\xff', 'w')", "folder"),
            ("os.mkdir('x')", "file"),
            ("open('x', 'w')", "folder"),
            ("pass", "file"),
        ],
    )
    def test_paths_that_cannot_be_returned(self, server, prepare, kind):
        program = Program()
        program.call(program.module(f"import os\ndef main():\n    {prepare}\n"), "main")
        program.add("return", key="x", kind=kind, path="x")
        result = server.execute(program)
        assert result.status == "FAILED" and result.values == {}
        assert (result.error["kind"], result.error["instruction_op"]) == ("serialization", "return")
        assert result.error["instruction_id"] is None

    def test_parts_are_numbered_depth_first_in_the_order_of_the_returns(self, server):
        contents = [uuid.uuid4().bytes for _ in range(3)]
        program = Program()
        for index, content in enumerate(contents):
            program.add("upload", id=f"b{index}", kind="bytes", blob=program.blob(content))
        nest = program.module("def main(a, b):\n    return {'x': [a, {'y': b}]}\n")
        nested = program.call(nest, "main", [{"$ref": "b0"}, {"$ref": "b1"}])
        program.give("nested", nested)
        program.give("last", {"$ref": "b2"})
        reply = server.post(program)
        results = reply.result().document["results"]
        inner = results["nested"]["value"]["x"]["value"]
        assert [inner[0]["part"], inner[1]["value"]["y"]["part"], results["last"]["part"]] == ["return:0", "return:1", "return:2"]
