"""Every kind of instruction, its frames in order, and every kind of error (contract sections 3 and 6)."""

import importlib.util
import sys

import pytest

from driver import digest, function, module, program, returns, run


def failure(slot, source, *args):
    outcome = slot.run(program(source, *args))
    assert outcome.error, outcome.returned
    return outcome.error


def wire(outcome, key="result"):
    assert not outcome.error, outcome.error
    return outcome.returned[key].wire


def test_the_frames_of_a_program(slot):
    outcome = slot.run(program("def f():\n    return 1\n"))
    assert [(frame["type"], frame.get("index")) for frame in outcome.frames] == [
        ("started", 0),
        ("lease_request", 0),
        ("started", 1),
        ("started", 2),
        ("started", 3),
        ("returned", 3),
        ("completed", None),
    ]


def lease_frames(outcome):
    return [
        (frame["type"].partition("_")[2], frame["index"])
        for frame in outcome.frames
        if frame["type"].startswith("lease")
    ]


def test_the_lease_is_given_back_around_cpu_only_runs(slot):
    source = "def f(): return 1\n"
    outcome = slot.run(
        [
            module(source),
            function("f", cpu_only=True),
            function("f", id="g"),
            run("f", id="a"),
            run("f", id="b"),
            run("g", id="c"),
            run("g", id="d"),
            run("f", id="e"),
            returns("e"),
        ]
    )
    assert lease_frames(outcome) == [("request", 0), ("release", 3), ("request", 5), ("release", 7)]


def test_what_needs_no_lease(slot):
    content = b"x"
    outcome = slot.run(
        [
            {"op": "upload", "id": "b", "kind": "bytes", "blob": digest(content)},
            {"op": "upload", "id": "f", "kind": "file", "path": "f", "blob": digest(content)},
            module("__global__ void k() {}", id="c", language="cuda"),
            function("k", module="c"),
            returns("b"),
            {"op": "return", "key": "file", "kind": "file", "path": "f"},
        ],
        [content],
    )
    assert outcome.completed and lease_frames(outcome) == []


def test_without_devices_no_lease_is_asked_for(slot):
    source = "def f(): return 1\n"
    instructions = [module(source), function("f", cpu_only=True), function("f", id="g"), run("f", id="a"), run("g", id="b")]
    outcome = slot.run(instructions, needs_lease=False)
    assert outcome.completed and lease_frames(outcome) == []


def test_a_tensor_needs_the_lease(slot):
    upload = {"op": "upload", "id": "t", "kind": "tensor", "dtype": "uint8", "shape": [1], "blob": digest(b"x")}
    assert lease_frames(slot.run([upload, returns("t")], [b"x"])) == [("request", 0)]


def test_arguments_literals_and_references(slot):
    source = "def f(*args):\n    return list(args)\n"
    literal = {"$ref": "b", "more": 1}
    outcome = slot.run(
        [
            {"op": "upload", "id": "b", "kind": "bytes", "blob": digest(b"xy")},
            module(source),
            function("f"),
            run("f", {"$ref": "b"}, [{"$ref": "b"}], literal, {"z": 1, "a": 10**40, "m": -0.5}, None, True),
            returns(),
        ],
        [b"xy"],
    )
    values = wire(outcome)["value"]
    assert values[0] == {"type": "bytes", "part": 0}
    assert values[1]["value"][0]["value"]["$ref"]["value"] == "b"
    assert list(values[2]["value"]) == ["$ref", "more"]
    assert list(values[3]["value"]) == ["z", "a", "m"] and values[3]["value"]["a"]["value"] == 10**40
    assert values[4] == {"type": "null"} and values[5] == {"type": "boolean", "value": True}


def test_integers_of_any_size_in_and_out_without_lifting_the_programs_own_limit(slot):
    source = """
import sys
def f(n):
    try:
        str(n)
    except ValueError:
        limited = True
    else:
        limited = not hasattr(sys, "set_int_max_str_digits")
    return [limited, n % 1000007]
"""
    huge = 7**20000
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    values = wire(slot.run(program(source, huge)))["value"]
    assert values[0]["value"] is True and values[1]["value"] == huge % 1000007


def test_a_result_can_be_called(slot):
    source = "def make(n):\n    return lambda m: n + m\n"
    outcome = slot.run([module(source), function("make"), run("make", 2, id="add"), run("add", 3), returns()])
    assert wire(outcome)["value"] == 5


def test_objects_that_are_not_callable_can_be_selected_and_passed(slot):
    source = "LIMIT = 7\ndef f(x):\n    return x + 1\n"
    outcome = slot.run([module(source), function("LIMIT"), function("f"), run("f", {"$ref": "LIMIT"}), returns()])
    assert wire(outcome)["value"] == 8


def test_a_blob_is_used_many_times_independently(slot):
    content = bytes(range(8))
    uploads = [
        {"op": "upload", "id": "t%d" % i, "kind": "tensor", "dtype": "uint8", "shape": [8], "blob": digest(content)}
        for i in range(3)
    ]
    source = "def f(t):\n    t[0] = 99\n"
    outcome = slot.run(
        [
            *uploads,
            {"op": "upload", "id": "b", "kind": "bytes", "blob": digest(content)},
            module(source),
            function("f"),
            run("f", {"$ref": "t0"}),
            run("f", {"$ref": "t2"}, id="again"),
            *[returns(name, name) for name in ("t0", "t1", "t2", "b")],
        ],
        [content],
        needs_lease=False,
    )
    assert [outcome.returned[name].parts[0][0] for name in ("t0", "t1", "t2", "b")] == [99, 0, 99, 0]


def test_more_blobs_than_one_frame_carries(slot):
    contents = [b"%d" % i for i in range(300)]
    uploads = [{"op": "upload", "id": "b%d" % i, "kind": "bytes", "blob": digest(c)} for i, c in enumerate(contents)]
    outcome = slot.run([*uploads, returns("b299")], contents)
    assert outcome.returned["result"].parts == [b"299"]


def test_tensors_without_torch_name_the_dtype_that_needs_it(slot):
    upload = {"op": "upload", "id": "t", "kind": "tensor", "dtype": "bfloat16", "shape": [1], "blob": digest(b"xy")}
    error = slot.run([upload], [b"xy"], needs_lease=False).error
    assert error is None or (error["kind"] == "unavailable" and "bfloat16" in error["message"])


def test_cuda_source(slot):
    source = "def f(k):\n    return [k.source, k.name]\ndef g(text):\n    return text\n"
    text = "__global__ void add_one(float* x) {}\n"
    outcome = slot.run(
        [
            module(text, id="c", language="cuda"),
            function("add_one", id="k", module="c"),
            module(source),
            function("f"),
            function("g"),
            run("f", {"$ref": "k"}),
            returns(),
            run("g", {"$ref": "c"}, id="t"),
            returns("t", "text"),
        ]
    )
    assert [each["value"] for each in wire(outcome)["value"]] == [text, "add_one"]
    assert wire(outcome, "text")["value"] == text


def test_libraries_say_what_the_server_lacks(slot):
    upload = {"op": "upload", "id": "l", "kind": "library", "blob": digest(b"\x7fELF")}
    error = slot.run([upload], [b"\x7fELF"]).error
    if importlib.util.find_spec("tvm_ffi") is None:
        assert error["kind"] == "unavailable" and "apache-tvm-ffi" in error["message"]
    else:
        assert error["kind"] == "compile"


def test_a_library_needs_the_lease(slot):
    upload = {"op": "upload", "id": "l", "kind": "library", "blob": digest(b"\x7fELF")}
    assert lease_frames(slot.run([upload], [b"\x7fELF"])) == [("request", 0)]


def test_builtins_of_a_cpu_server(slot):
    source = "from kcoral.builtins import benchmark, compile_tirx\n"
    outcome = slot.run(
        [module(source + "def f():\n    return benchmark(f, 1, {'warmup': 3})\n"), function("f"), run("f")]
    )
    assert outcome.error["kind"] == "unavailable" and "GPU" in outcome.error["message"]
    outcome = slot.run([module(source), function("compile_tirx"), run("compile_tirx", 1)])
    assert outcome.error["kind"] == "unavailable" and (
        "TVM" in outcome.error["message"] or "GPU" in outcome.error["message"]
    )
    for config in (
        "{'warm': 1}",
        "{'repeat': 0}",
        "{'flush_l2': 1}",
        "{'repeat_ms': float('inf')}",
        "{'warmup': True}",
    ):
        error = failure(slot, source + "def f():\n    benchmark(print, %s)\n" % config)
        assert error["kind"] == "runtime" and "benchmark" in error["message"]


@pytest.mark.parametrize(
    "source, message, shown",
    [
        ("def f(:\n", "invalid syntax", "def f(:"),
        ("x = 1\nraise ValueError('bad')\n", "bad", "raise ValueError('bad')"),
        ("import missing_module\n", "missing_module", "import missing_module"),
        ("import sys\nsys.exit(3)\n", "sys.exit(3)", "sys.exit(3)"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt", "raise KeyboardInterrupt"),
        ("assert 1 == 2, 'no'\n", "no", "assert 1 == 2"),
        ("x = '\\0'\n\x00\n", "null", ""),
        ("  x = 1\n", "indent", "x = 1"),
    ],
)
def test_modules_that_cannot_be_loaded(slot, source, message, shown):
    error = slot.run([module(source)]).error
    assert error["kind"] == "parse" and message in error["message"] and shown in error["traceback"], error
    assert "kcoral_upload_m.py" in error["traceback"] or not shown
    assert "boundary.py" not in error["traceback"] and "modules.py" not in error["traceback"]


def test_a_missing_name(slot):
    error = slot.run([module("x = 1\n"), function("y")]).error
    assert error["kind"] == "parse" and "'y'" in error["message"] and error["index"] == 1


def test_a_module_may_compute_its_names(slot):
    source = "def __getattr__(name):\n    if name == 'bad': raise AttributeError(name)\n    return lambda: name\n"
    assert wire(slot.run([module(source), function("good"), run("good"), returns()]))["value"] == "good"
    assert slot.run([module(source), function("bad")]).error["kind"] == "parse"


@pytest.mark.parametrize(
    "body, kind, message",
    [
        ("raise ValueError('wrong')", "runtime", "wrong"),
        ("raise AssertionError('differs')", "correctness", "differs"),
        ("assert False", "correctness", "AssertionError"),
        ("raise type('Mine', (AssertionError,), {})('sub')", "correctness", "sub"),
        ("raise SystemExit(3)", "runtime", "sys.exit(3)"),
        ("import sys; sys.exit('bye')", "runtime", "bye"),
        ("raise SystemExit", "runtime", "sys.exit()"),
        ("raise KeyboardInterrupt", "runtime", "KeyboardInterrupt"),
        ("raise GeneratorExit('x')", "runtime", "GeneratorExit: x"),
        ("raise type('Odd', (BaseException,), {})('base')", "runtime", "Odd: base"),
        ("raise KeyError('k')", "runtime", "'k'"),
        ("raise ValueError", "runtime", "ValueError"),
        ("raise Mute", "runtime", "Mute"),
        ("raise Liar", "runtime", "Liar"),
        ("raise Quitter", "runtime", "Quitter"),
        ("raise ValueError('\\ud800 \\u20ac')", "runtime", "? \u20ac"),
        ("return f(0)", "runtime", "positional argument"),
        ("return g()", "runtime", "maximum recursion depth"),
        ("import kcoral.builtins as b; raise b.CompileFailed('ptxas')", "compile", "ptxas"),
        ("import kcoral.builtins as b; raise b.Unavailable('no disk')", "unavailable", "no disk"),
    ],
)
def test_errors_of_a_run(slot, body, kind, message):
    source = """
class Mute(Exception):
    def __str__(self): raise RuntimeError
class Liar(Exception):
    def __str__(self): return 7
class Quitter(Exception):
    def __str__(self): raise SystemExit(1)
def g(): return g()
def f():
    %s
"""
    error = failure(slot, source % body)
    assert error["kind"] == kind and message in error["message"], error
    assert 'kcoral_upload_m.py", line ' in error["traceback"] or "positional" in message
    assert len(error["traceback"].encode()) <= 8192


def test_not_callable(slot):
    error = slot.run([module("f = [1]\n"), function("f"), run("f")]).error
    assert error["kind"] == "runtime" and "not callable" in error["message"] and "list" in error["message"]


def test_a_traceback_shows_the_uploaded_lines_and_the_causes(slot):
    source = """
def inner():
    return {}["missing"]
def f():
    try:
        inner()
    except KeyError as cause:
        raise ValueError("outer") from cause
"""
    text = failure(slot, source)["traceback"]
    assert text == """Traceback (most recent call last):
  File "%s", line 6, in f
    inner()
  File "%s", line 3, in inner
    return {}["missing"]
KeyError: 'missing'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "%s", line 8, in f
    raise ValueError("outer") from cause
ValueError: outer
""" % ((slot.root + "/private/modules/kcoral_upload_m.py",) * 3)


def test_the_end_of_a_long_traceback_is_kept(slot):
    source = (
        "def f(n=%d):\n    return f(n - 1) if n %% 2 else g(n)\ndef g(n):\n    return f(n - 1) if n > 0 else 1 / 0\n"
        % 300
    )
    error = failure(slot, source)
    assert (
        error["traceback"].endswith("ZeroDivisionError: division by zero\n")
        and 8000 < len(error["traceback"].encode()) <= 8192
    )


def test_groups_and_notes(slot):
    if sys.version_info < (3, 11):
        pytest.skip("from Python 3.11")
    source = """
def f():
    noted = ValueError("one")
    noted.add_note("see here")
    raise ExceptionGroup("many", [noted, KeyError("two")])
"""
    text = failure(slot, source)["traceback"]
    assert "ExceptionGroup: many (2 sub-exceptions)" in text and "| ValueError: one" in text and "| see here" in text


def test_a_program_that_ends_its_own_process(slot):
    outcome = slot.run(program("import os\ndef f():\n    print('last words')\n    os._exit(7)\n"))
    assert outcome.died and outcome.exit["code"] == 7 and outcome.stdout == b"last words\n"
    outcome = slot.run(
        program("import os, signal\ndef f():\n    print('dying', end='')\n    os.kill(os.getpid(), signal.SIGSEGV)\n")
    )
    assert outcome.died and outcome.exit["signal"] == 11 and outcome.stdout == b"dying"


def test_what_was_printed_before_the_deadline_is_there(slot):
    source = (
        "import time\ndef f():\n    print('.', end='')\n    import sys; sys.stderr.write('err')\n    time.sleep(1000)\n"
    )
    outcome = slot.run(program(source), killed_after=lambda outcome: outcome.stdout and outcome.stderr)
    assert outcome.stdout == b"." and outcome.stderr == b"err" and outcome.exit["signal"] == 9


def test_output_is_flushed_before_an_instruction_is_reported(slot):
    source = """
import ctypes, io, sys
def f():
    ctypes.CDLL(None).printf(b"from C")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    print("replaced", end="")
    return 1
"""
    outcome = slot.run(program(source))
    assert b"from C" in outcome.stdout and b"replaced" in outcome.stdout


@pytest.mark.parametrize(
    "change",
    [
        "sys.stdout.reconfigure(write_through=False)",
        "sys.stdout.__init__(io.BufferedWriter(io.FileIO(1, 'w', closefd=False)), write_through=True)",
        "sys.stdout = sys.stdout.detach() and io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, 'w', closefd=False)))",
        "kept = io.StringIO()\nsys.stdout.write = kept.write\n"
        "sys.stdout.flush = lambda kept=kept: kept.tell() and os.write(1, kept.getvalue().encode()) and kept.__init__()",
    ],
)
def test_what_a_changed_stream_keeps_back_is_flushed_before_the_next_instruction(slot, change):
    source = "import io, os, sys\ndef f():\n    exec(%r)\n    print('said')\n" % change
    source += "def g(): os.write(1, b'then')"
    outcome = slot.run([*program(source), function("g"), run("g")])
    assert outcome.stdout == b"said\nthen"


def test_a_name_of_the_programs_own_among_those_of_sys_does_no_harm(slot):
    source = """
import sys

class Name(str):
    def __eq__(self, other):
        raise ValueError("not equal")
    __hash__ = str.__hash__

def f():
    del sys.stdout
    vars(sys)[Name("stdout")] = 1
    return 2
"""
    assert slot.run(program(source)).returned["result"].wire["value"] == 2


def test_several_modules_with_the_same_safe_name(slot):
    outcome = slot.run(
        [
            module("x = 1\ndef f(): return x\n", id="a-b"),
            module("x = 2\ndef f(): return x\n", id="a_b"),
            module("x = 3\n", id="\u00fc" * 500),
            function("f", id="one", module="a-b"),
            function("f", id="two", module="a_b"),
            run("one", id="r1"),
            run("two", id="r2"),
            returns("r1", "one"),
            returns("r2", "two"),
        ]
    )
    assert [wire(outcome, key)["value"] for key in ("one", "two")] == [1, 2]


def test_a_module_named_like_ours_or_the_standard_librarys(slot):
    for id in ("values", "json", "os", "zygote", "runtime"):
        outcome = slot.run(
            [
                module("import json\ndef f(): return json.dumps([1])\n", id=id),
                function("f", module=id),
                run("f"),
                returns(),
            ]
        )
        assert wire(outcome)["value"] == "[1]"


def test_asynchronous_functions_give_plain_values(slot):
    source = "import asyncio\nasync def f():\n    return 5\ndef finish(c):\n    return asyncio.run(c)\n"
    outcome = slot.run(
        [module(source), function("f"), function("finish"), run("f", id="c"), run("finish", {"$ref": "c"}), returns()]
    )
    assert wire(outcome)["value"] == 5
